//! Token ids against llama.cpp (`golden/text/tokens.json`, made by `tokens.py` beside it).
// Helpers outside of `#[test]` unwrap too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{golden, ids, strings};
use planish_store::gguf::Gguf;
use planish_testkit::files::needed;
use planish_text::{TokenKind, Tokenizer, Vocab};
use proptest::prelude::*;
use serde_json::Value;

fn tiny(pre: &str) -> Tokenizer {
    let g = golden("tokens.json");
    let tokens = strings(&g["tiny"]["tokens"]);
    let (control, user) = (strings(&g["tiny"]["control"]), strings(&g["tiny"]["user_defined"]));
    let kind = |t: &String| match (control.contains(t), user.contains(t)) {
        (true, _) => TokenKind::Control,
        (_, true) => TokenKind::UserDefined,
        _ => TokenKind::Normal,
    };
    Tokenizer::from_vocab(Vocab {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        kinds: tokens.iter().map(kind).collect(),
        tokens,
        merges: strings(&g["tiny"]["merges"]),
        bos: Some(1),
        eos: Some(2),
        ..Vocab::default()
    })
    .unwrap()
}

fn check(tokenizer: &Tokenizer, texts: &[String], expected: &Value, name: &str) {
    let mut wrong = Vec::new();
    for (text, want) in texts.iter().zip(expected.as_array().unwrap()) {
        let (special, plain) = (ids(&want[0]), ids(&want[1]));
        let got = tokenizer.encode_with_offsets(text).unwrap();
        if got.ids != special {
            wrong.push(format!("{name} encode {text:?}: {:?}, want {special:?}", got.ids));
        }
        assert_eq!(got.ends.last().copied().unwrap_or(0), text.len(), "{name} {text:?}");
        let got = tokenizer.encode_plain(text).unwrap();
        if got != plain {
            wrong.push(format!("{name} encode_plain {text:?}: {got:?}, want {plain:?}"));
        }
        // llama.cpp writes U+2581 back as a blank too.
        if !text.contains('\u{2581}') {
            assert_eq!(tokenizer.decode(&plain), *text, "{name}");
        }
        let mut stream = tokenizer.stream();
        let mut streamed: String = plain.iter().map(|id| stream.push(*id)).collect();
        streamed.push_str(&stream.finish());
        assert!(streamed.ends_with(&tokenizer.decode(&plain)), "{name} {text:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_pre_tokenizer_cuts_as_llama_cpp_does() {
    let g = golden("tokens.json");
    let texts = strings(&g["strings"]);
    for (pre, expected) in g["tiny"]["ids"].as_object().unwrap() {
        check(&tiny(pre), &texts, expected, pre);
    }
}

#[test]
fn real_vocabularies_give_llama_cpps_ids() {
    let g = golden("tokens.json");
    let texts = strings(&g["strings"]);
    let files = [
        ("PLANISH_MODELS", "smollm2-135m-q4_1.gguf"),
        ("PLANISH_SHARED", "models/stories260K/stories260K-f32.v3.gguf"),
    ];
    for (variable, name) in files {
        let Some(path) = needed(variable, name) else { continue };
        let file = name.rsplit('/').next().unwrap();
        let gguf = Gguf::open(&path).unwrap();
        check(&Tokenizer::from_gguf(gguf.metadata()).unwrap(), &texts, &g["models"][file], file);
    }
}

#[test]
fn bos_eos_and_end_of_generation_of_real_models() {
    if let Some(path) = needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf") {
        let t = Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap();
        assert_eq!((t.bos(), t.eos(), t.eot(), t.add_bos()), (Some(1), Some(2), Some(2), false));
        assert_eq!((t.vocab_size(), t.end_of_generation()), (49152, &[0, 2][..]));
    }
    if let Some(path) = needed("PLANISH_SHARED", "models/stories260K/stories260K-f32.v3.gguf") {
        let t = Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap();
        assert_eq!((t.bos(), t.eos(), t.add_bos()), (Some(1), Some(2), true));
        assert_eq!(t.prompt("<s>a").unwrap(), t.prompt("a").unwrap());
        assert_eq!(t.prompt("<s><s>a").unwrap_err().code(), "double bos");
        assert_eq!(t.piece(3 + 0x0A), Some(&b"\n"[..]));
    }
}

#[test]
fn a_stream_never_cuts_a_character() {
    let t = common::byte_tokenizer(None, None);
    let ids = t.encode_plain("a😀é").unwrap();
    let mut stream = t.stream();
    let parts: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(parts, ["a", "", "", "", "😀", "", "é"]);
    assert_eq!(stream.finish(), "");
    // A character broken off by another, then by the end.
    let mut stream = t.stream();
    let id = |byte: u8| (0..256).find(|id| t.piece(*id) == Some(&[byte])).unwrap();
    let parts: Vec<String> = [0xF0, 0x9F, b'x', 0xFF, 0xC3].iter().map(|b| stream.push(id(*b))).collect();
    assert_eq!(parts, ["", "", "\u{FFFD}x", "\u{FFFD}", ""]);
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(t.decode(&[999_999, id(b'x')]), "x");
}

#[test]
fn one_huge_word_takes_bounded_time() {
    let t = tiny("gpt-2");
    let word = "a".repeat(300_000);
    assert_eq!(t.decode(&t.encode(&word).unwrap()), word);
    let blanks = " ".repeat(300_000);
    assert_eq!(t.decode(&t.encode(&blanks).unwrap()), blanks);
    let open = "<".repeat(300_000);
    assert_eq!(t.decode(&t.encode(&open).unwrap()), open);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_survive_a_round_trip(text in "\\PC{0,40}|[ \\n\\ta1<|>']{0,40}") {
        for pre in ["default", "smollm", "llama-bpe", "qwen35"] {
            let t = tiny(pre);
            let got = t.encode_with_offsets(&text).unwrap();
            let bytes: Vec<u8> = got.ids.iter().flat_map(|id| t.piece(*id).unwrap().to_vec()).collect();
            prop_assert_eq!(&bytes, text.as_bytes());
            let ends = got.ids.iter().scan(0, |end, id| { *end += t.piece(*id).unwrap().len(); Some(*end) });
            prop_assert_eq!(got.ends, ends.collect::<Vec<_>>());
        }
    }
}
