//! What the tests share: a byte vocabulary, golden files, real models where the machine has them.
#![allow(dead_code)]
// Tests read the environment and files of their own, say what they skip, and unwrap outside of `#[test]` too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;

use planish_text::{TokenKind, Tokenizer, Vocab};
use serde_json::Value;

pub const CONTROL: &[&str] = &[
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
];

/// A token for each byte, one merge, and the control tokens above.
pub fn byte_vocab(bos: Option<&str>, eos: Option<&str>) -> Vocab {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = (0x100u32..).filter_map(char::from_u32);
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| if printable(&b) { char::from(b) } else { others.next().unwrap() }.to_string())
        .collect();
    tokens.push("th".into());
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    tokens.extend(CONTROL.iter().map(|t| t.to_string()));
    kinds.resize(tokens.len(), TokenKind::Control);
    let id = |text: &str| tokens.iter().position(|t| t == text).map(|i| i as u32);
    Vocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        bos: bos.and_then(id),
        eos: eos.and_then(id),
        tokens,
        kinds,
        merges: vec!["t h".into()],
        ..Vocab::default()
    }
}

pub fn byte_tokenizer(bos: Option<&str>, eos: Option<&str>) -> Tokenizer {
    Tokenizer::from_vocab(byte_vocab(bos, eos)).unwrap()
}

pub fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/text").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn strings(v: &Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
}

pub fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}
