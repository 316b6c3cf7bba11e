//! Hugging Face's tokenizer.json: ids as the `tokenizers` library gives them (`golden/text/tokenizer_json.json`), special
//! tokens, and files that cannot be.
// Helpers outside of `#[test]` unwrap too.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::LazyLock;

use common::{golden, ids, strings};
use planish_text::{Result, TokenKind, Tokenizer, Vocab};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(file: &Value, config: Option<Value>) -> Result<Vocab> {
    let config = config.map(|c| c.to_string().into_bytes());
    Vocab::from_tokenizer_json(file.to_string().as_bytes(), config.as_deref())
}

fn style(name: &str) -> Value {
    golden("tokenizer_json.json")["styles"][name]["file"].clone()
}

fn id(vocab: &Vocab, text: &str) -> Option<u32> {
    vocab.tokens.iter().position(|t| t == text).map(|i| i as u32)
}

#[test]
fn ids_are_those_of_hugging_face() {
    let g = golden("tokenizer_json.json");
    let texts = strings(&g["strings"]);
    for (name, style) in g["styles"].as_object().unwrap() {
        let vocab = read(&style["file"], None).unwrap();
        assert_eq!(vocab.pre.as_ref(), Some(name));
        let t = Tokenizer::from_vocab(vocab).unwrap();
        let mut wrong = Vec::new();
        for (text, want) in texts.iter().zip(style["ids"].as_array().unwrap()) {
            let plain = t.encode(text).unwrap();
            if (plain.clone(), t.prompt(text).unwrap()) != (ids(&want[0]), ids(&want[1])) {
                wrong.push(format!("{name} {text:?}: {plain:?}, want {want}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn bos_and_eos_come_from_where_they_are_certain() {
    // The one token that ends a text; nothing in front of one.
    let gpt2 = read(&style("gpt-2"), None).unwrap();
    assert_eq!((gpt2.bos, gpt2.eos, gpt2.add_bos), (None, id(&gpt2, "<|endoftext|>"), Some(false)));
    // Two could end a text; the template puts one in front.
    let llama = read(&style("llama-bpe"), None).unwrap();
    assert_eq!((llama.bos, llama.eos, llama.add_bos), (id(&llama, "<|im_start|>"), None, Some(true)));
    assert_eq!(llama.kind(id(&llama, "<|im_end|>").unwrap()), TokenKind::Control);
    assert_eq!(llama.kind(id(&llama, "<tool>").unwrap()), TokenKind::UserDefined);
    let config = json!({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": false},
                        "pad_token": "<|endoftext|>", "unk_token": null, "add_bos_token": true, "model_max_length": 8192});
    let qwen = read(&style("qwen2"), Some(config)).unwrap();
    assert_eq!((qwen.bos, qwen.eos), (id(&qwen, "<|im_start|>"), id(&qwen, "<|im_end|>")));
    assert_eq!((qwen.pad, qwen.unk, qwen.add_bos), (id(&qwen, "<|endoftext|>"), None, Some(true)));
    let e = read(&style("qwen2"), Some(json!({"eos_token": "</s>"}))).unwrap_err();
    assert!(e.to_string().contains("eos_token") && e.to_string().contains("</s>"), "{e}");
}

/// The message for a file that `change` made of the Qwen2 style.
fn message(change: impl FnOnce(&mut Value)) -> String {
    let mut file = style("qwen2");
    change(&mut file);
    let e = read(&file, None).map(|_| ()).expect_err("accepted");
    assert!(["tokenizer.json", "token"].contains(&e.code()), "{e}");
    e.to_string()
}

/// Changes the value at a path of keys.
fn set(path: &str, value: Value) -> impl FnOnce(&mut Value) {
    move |file| *file.pointer_mut(path).unwrap() = value
}

#[test]
fn what_a_gguf_file_cannot_say_is_refused_by_name() {
    let steps = "/pre_tokenizer/pretokenizers";
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let digits = json!({"type": "Digits", "individual_digits": false});
    let cases = [
        (set("/model/type", json!("Unigram")), "Unigram"),
        (set("/model/type", json!("WordPiece")), "WordPiece"),
        (set("/model/byte_fallback", json!(true)), "byte fallback"),
        (set("/model/dropout", json!(0.1)), "dropout"),
        (set("/model/end_of_word_suffix", json!("</w>")), "suffix"),
        (set("/model/continuing_subword_prefix", json!("##")), "prefix"),
        (set("/normalizer", json!({"type": "Lowercase"})), "Lowercase"),
        (set("/normalizer", json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}]})), "NFKC"),
        (set("/pre_tokenizer", json!({"type": "BertPreTokenizer"})), "BertPreTokenizer"),
        (set("/pre_tokenizer", json!({"type": "Metaspace", "replacement": "_"})), "Metaspace"),
        (set("/pre_tokenizer", Value::Null), "ByteLevel"),
        (set("/pre_tokenizer", byte_level.clone()), "unknown pre-tokenizer"),
        (set(steps, json!([digits, byte_level])), "Digits"),
        (set(steps, json!([byte_level, byte_level])), "ByteLevel"),
        (set("/pre_tokenizer/pretokenizers/0/pattern", json!({"Regex": "\\w+"})), "\\w+"),
        (set("/pre_tokenizer/pretokenizers/0/pattern", json!({"String": "--"})), "--"),
        (set("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")), "Split"),
        (set("/pre_tokenizer/pretokenizers/0/invert", json!(true)), "Split"),
        (set("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true)), "ByteLevel"),
        // Qwen2's words, but with a look at whole words: llama.cpp has no name for that.
        (set("/model/ignore_merges", json!(true)), "unknown pre-tokenizer"),
        (set("/post_processor", json!({"type": "RobertaProcessing", "sep": ["a", 1]})), "RobertaProcessing"),
        (set("/added_tokens/0/lstrip", json!(true)), "beside it"),
    ];
    for (i, (change, part)) in cases.into_iter().enumerate() {
        let mut file = style("qwen2");
        change(&mut file);
        let e = read(&file, None).map(|_| ()).expect_err(&format!("case {i} ({part}) is accepted"));
        assert!(e.to_string().contains(part), "case {i}: {e}");
        assert!(e.hint().unwrap().contains("GGUF"), "case {i}");
    }
}

#[test]
fn ids_and_texts_that_contradict_themselves_are_errors() {
    for id in [100_000, u32::MAX] {
        assert!(message(set("/model/vocab/!", json!(id))).contains(&format!("token id {id}, expected")));
    }
    assert!(message(set("/model/vocab/!", json!(1))).contains("token id 1"));
    assert!(message(set("/added_tokens/0/id", json!(1))).contains("token id 1"));
    assert!(message(set("/added_tokens/0/content", json!("<tool>"))).contains("twice"));
    let without = |text: &'static str| {
        move |file: &mut Value| drop(file["model"]["vocab"].as_object_mut().unwrap().remove(text))
    };
    assert!(message(without("!")).contains("without holes"));
    // A special token that is in both lists makes up for the one that is missing.
    let hole = |file: &mut Value| {
        let special = file["added_tokens"][0].clone();
        file["model"]["vocab"][special["content"].as_str().unwrap()] = special["id"].clone();
        without("!")(file);
    };
    assert!(message(hole).contains("no token has the id 0"));
    for bad in [json!(-1), json!(1.5), json!("0"), json!(1u64 << 32), Value::Null] {
        message(set("/model/vocab/!", bad));
    }
    for bad in [json!([["a", "b", "c"]]), json!([["a"]]), json!([1]), json!({}), json!([["a ", "b"]])] {
        message(set("/model/merges", bad));
    }
    message(set("/model/vocab", json!([["a", -1.0]])));
    message(set("/model", json!({})));
    // One text with two ids, which a map would hide.
    let text = style("qwen2").to_string();
    let twice = text.replacen("\"vocab\":{", "\"vocab\":{\"!\":1000,", 1);
    assert!(Vocab::from_tokenizer_json(twice.as_bytes(), None).is_err());
    // Merges are checked with the rest of the model.
    let mut file = style("qwen2");
    file["model"]["merges"] = json!([["zz", "!"]]);
    assert_eq!(Tokenizer::from_vocab(read(&file, None).unwrap()).unwrap_err().code(), "merge");
    for bytes in [&b""[..], b"{", b"[]", b"null", b"\xff", b"{\"model\":{\"type\":\"BPE\"}}"] {
        assert_eq!(Vocab::from_tokenizer_json(bytes, None).unwrap_err().code(), "tokenizer.json");
    }
    let nested = format!("{{\"model\":{}", "[".repeat(1_000_000));
    assert!(Vocab::from_tokenizer_json(nested.as_bytes(), None).is_err());
    assert!(Vocab::from_tokenizer_json(text.as_bytes(), Some(b"{")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_files_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        static FILES: LazyLock<[String; 2]> = LazyLock::new(|| ["gpt-2", "llama-bpe"].map(|s| style(s).to_string()));
        for file in &*FILES {
            let mut bytes = file.clone().into_bytes();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
            if let Ok(t) = Vocab::from_tokenizer_json(&bytes, None).and_then(Tokenizer::from_vocab) {
                let _ = t.prompt("It's 12 tools.");
            }
        }
    }
}
