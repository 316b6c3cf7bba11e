//! The tokenizer keys of a GGUF file: types, defaults, and values that cannot be.
// Helpers outside of `#[test]` unwrap too.
#![allow(clippy::unwrap_used)]

mod common;

use common::byte_vocab;
use planish_store::Bytes;
use planish_store::gguf::Gguf;
use planish_testkit::gguf_bytes::{File, ty};
use planish_text::{ChatTemplate, Message, Result, Tokenizer};

const KEY: &str = "tokenizer.ggml.";

fn keys() -> File {
    let v = byte_vocab(None, None);
    let texts: Vec<&str> = v.tokens.iter().map(String::as_str).collect();
    File::new()
        .kv_str("tokenizer.ggml.model", "gpt2")
        .kv_strings("tokenizer.ggml.tokens", &texts)
        .kv_strings("tokenizer.ggml.merges", &["t h"])
}

fn open(file: File) -> Result<Gguf> {
    Gguf::from_bytes(Bytes::from_vec(file.bytes()))
}

fn read(file: File) -> Result<Tokenizer> {
    Tokenizer::from_gguf(open(file)?.metadata())
}

fn kinds<T>(element: u32, number: impl Fn(u8) -> T, bytes: impl Fn(T) -> Vec<u8>) -> File {
    let n = byte_vocab(None, None).tokens.len();
    let data: Vec<u8> = (0..n).flat_map(|i| bytes(number(if i > 256 { 3 } else { 1 }))).collect();
    keys().kv_array("tokenizer.ggml.token_type", element, n as u64, &data)
}

#[test]
fn defaults_follow_the_pre_tokenizer() {
    let t = read(keys()).unwrap();
    assert_eq!((t.bos(), t.eos(), t.add_bos()), (None, None, false));
    // Recognised by its text although nothing says that it is a control token.
    assert!(t.is_end_of_generation(259) && t.is_special(259));
    assert_eq!(t.eot().and_then(|id| t.token_text(id)), Some("<|eot_id|>"));
    let bos = |f: File| f.kv_u32("tokenizer.ggml.bos_token_id", 260);
    let t = read(bos(keys().kv_str("tokenizer.ggml.pre", "llama-bpe"))).unwrap();
    assert_eq!(t.prompt("th").unwrap(), [260, 256]);
    let t = read(bos(keys().kv_str("tokenizer.ggml.pre", "qwen2"))).unwrap();
    assert_eq!(t.prompt("th").unwrap(), [256]);
    let t = read(bos(keys()).kv("tokenizer.ggml.add_bos_token", ty::BOOL, &[1])).unwrap();
    assert_eq!(t.prompt("th").unwrap(), [260, 256]);
}

#[test]
fn narrower_and_wider_integers_are_read_by_their_own_width() {
    for file in [
        kinds(ty::I32, i32::from, |n: i32| n.to_le_bytes().to_vec()),
        kinds(ty::U8, |n| n, |n: u8| vec![n]),
        kinds(ty::I64, i64::from, |n: i64| n.to_le_bytes().to_vec()),
    ] {
        let t = read(file).unwrap();
        assert_eq!(t.encode("th<|im_end|>").unwrap(), [256, 259]);
    }
}

#[test]
fn impossible_values_are_errors() {
    let scores = |element, bytes: Vec<u8>, n| keys().kv_array("tokenizer.ggml.scores", element, n, &bytes);
    let n = byte_vocab(None, None).tokens.len();
    let files = [
        keys().kv("tokenizer.ggml.bos_token_id", ty::I32, &(-1i32).to_le_bytes()),
        keys().kv_u32("tokenizer.ggml.eos_token_id", u32::MAX),
        keys().kv_u32("tokenizer.ggml.padding_token_id", n as u32),
        keys().kv_str("tokenizer.ggml.eos_token_id", "2"),
        keys().kv_u32("tokenizer.ggml.add_bos_token", 1),
        keys().kv_str("tokenizer.ggml.pre", "unheard-of"),
        scores(ty::U8, vec![0; n], n as u64),
        scores(ty::F32, vec![0; 8], 2),
        kinds(ty::F32, f32::from, |n: f32| n.to_le_bytes().to_vec()),
        File::new().kv_str("tokenizer.ggml.model", "gpt2"),
        File::new().kv_strings("tokenizer.ggml.tokens", &["a"]),
        File::new().kv_str("tokenizer.ggml.tokens", "a").kv_str("tokenizer.ggml.model", "gpt2"),
        File::new().kv_strings("tokenizer.ggml.tokens", &["a"]).kv_str("tokenizer.ggml.model", "t5"),
    ];
    for (i, file) in files.into_iter().enumerate() {
        let e = read(file).map(|_| ()).expect_err(&format!("file {i} is accepted"));
        assert!(e.to_string().contains(KEY), "file {i}: {e}");
    }
}

#[test]
fn the_chat_template_gets_the_texts_of_bos_and_eos() {
    let file = keys()
        .kv_u32("tokenizer.ggml.bos_token_id", 260)
        .kv_u32("tokenizer.ggml.eos_token_id", 259)
        .kv_str("tokenizer.chat_template", "{{ bos_token ~ messages[0].content ~ eos_token }}");
    let gguf = open(file).unwrap();
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
    let template = ChatTemplate::from_gguf(gguf.metadata(), &tokenizer).unwrap().unwrap();
    let text = template.render(&[Message::new("user", "hi")], None, true).unwrap();
    assert_eq!(text, "<|begin_of_text|>hi<|im_end|>");
    let none = open(keys()).unwrap();
    assert!(ChatTemplate::from_gguf(none.metadata(), &tokenizer).unwrap().is_none());
    let bad = open(keys().kv_u32("tokenizer.chat_template", 1)).unwrap();
    assert!(ChatTemplate::from_gguf(bad.metadata(), &tokenizer).is_err());
}
