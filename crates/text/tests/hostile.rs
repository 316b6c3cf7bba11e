//! Vocabularies that contradict themselves are refused, each with its own code.
// Helpers outside of `#[test]` unwrap too.
#![allow(clippy::unwrap_used)]

mod common;

use common::byte_vocab;
use planish_text::{TokenKind, Tokenizer, Vocab};
use proptest::prelude::*;

fn code(change: impl FnOnce(&mut Vocab)) -> &'static str {
    let mut vocab = byte_vocab(None, Some("<|im_end|>"));
    change(&mut vocab);
    Tokenizer::from_vocab(vocab).map(|_| "accepted").unwrap_or_else(|e| e.code())
}

fn spm() -> Vocab {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(["\u{2581}", "a", "b", "ab", "\u{2581}a", "<s"].map(String::from));
    let mut kinds = vec![TokenKind::Unknown, TokenKind::Control, TokenKind::Control];
    kinds.resize(259, TokenKind::Byte);
    kinds.resize(tokens.len(), TokenKind::Normal);
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    Vocab { model: "llama".into(), tokens, kinds, scores, ..Vocab::default() }
}

#[test]
fn contradictions_are_refused() {
    assert_eq!(code(|_| ()), "accepted");
    assert_eq!(code(|v| v.kinds.truncate(5)), "length");
    assert_eq!(code(|v| v.scores = vec![0.0; 3]), "length");
    assert_eq!(code(|v| v.scores = vec![f32::NAN; v.tokens.len()]), "score");
    let n = byte_vocab(None, None).tokens.len() as u32;
    for id in [n, u32::MAX] {
        assert_eq!(code(|v| v.bos = Some(id)), "token id");
        assert_eq!(code(|v| v.eos = Some(id)), "token id");
        assert_eq!(code(|v| v.eot = Some(id)), "token id");
        assert_eq!(code(|v| v.unk = Some(id)), "token id");
        assert_eq!(code(|v| v.pad = Some(id)), "token id");
    }
    assert_eq!(code(|v| v.add_bos = Some(true)), "token id");
    assert_eq!(code(|v| v.tokens[7] = v.tokens[8].clone()), "token");
    assert_eq!(code(|v| v.tokens[7] = "x".repeat(70_000)), "token");
    assert_eq!(code(|v| *v.tokens.last_mut().unwrap() = "x".repeat(2_000)), "token");
    for merge in ["", "th", " ", "t  h", "q", "t zz", "zz h", "h t", "t h h", "th th"] {
        assert_eq!(code(|v| v.merges = vec![merge.into()]), "merge", "{merge:?}");
    }
    assert_eq!(code(|v| v.merges.clear()), "merge");
    assert_eq!(code(|v| v.merges = vec!["t h".into(); 100_000]), "accepted");
    assert_eq!(code(|v| v.pre = Some("unheard-of".into())), "pre-tokenizer");
    for model in ["bert", "t5", "rwkv", "plamo2", ""] {
        assert_eq!(code(|v| v.model = model.into()), "tokenizer");
    }
}

#[test]
fn empty_tokens_match_nothing_and_missing_bytes_are_an_error() {
    let mut vocab = byte_vocab(None, None);
    vocab.tokens[usize::from(b'q')] = String::new();
    let last = vocab.tokens.len() - 1;
    vocab.tokens[last] = String::new();
    let t = Tokenizer::from_vocab(vocab).unwrap();
    assert_eq!(t.encode("th").unwrap(), [256]);
    assert_eq!(t.encode("quit").unwrap_err().code(), "byte token");
}

#[test]
fn sentencepiece_byte_tokens_are_checked() {
    let t = Tokenizer::from_vocab(spm()).unwrap();
    assert_eq!((t.bos(), t.eos(), t.add_bos()), (Some(1), Some(2), true));
    assert_eq!(t.encode("ab\n").unwrap(), [259, 262, 3 + 10]);
    assert_eq!(t.decode(&t.encode("ab é").unwrap()), "ab é");
    // `<s` and `>` must not merge into the control token.
    assert!(!t.encode_plain("<s>").unwrap().contains(&1));
    for bad in ["<0x-1>", "<0x100>", "<0xG0>", "<0x", "<0x+1>"] {
        let mut vocab = spm();
        vocab.tokens[20] = bad.into();
        assert_eq!(Tokenizer::from_vocab(vocab).unwrap_err().code(), "byte token", "{bad}");
    }
    let no_scores = Vocab { scores: Vec::new(), ..spm() };
    assert_eq!(Tokenizer::from_vocab(no_scores).unwrap_err().code(), "length");
    let mut no_bytes = spm();
    no_bytes.kinds.iter_mut().filter(|k| **k == TokenKind::Byte).for_each(|k| *k = TokenKind::Normal);
    let t = Tokenizer::from_vocab(no_bytes).unwrap();
    assert_eq!(t.encode("é").unwrap().last(), Some(&0), "the unknown token stands in");
    let empty = Vocab { model: "llama".into(), ..Vocab::default() };
    assert!(Tokenizer::from_vocab(empty).is_err());
}

#[test]
fn one_tokenizer_and_template_serve_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<planish_text::ChatTemplate>();
}

#[test]
fn a_huge_sentencepiece_word_takes_bounded_time() {
    let t = Tokenizer::from_vocab(spm()).unwrap();
    let word = "ab".repeat(150_000);
    assert_eq!(t.decode(&t.encode(&word).unwrap()), word);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_vocabulary_and_text_panic(
        tokens in prop::collection::vec("[ab<0x>\u{2581}é ]{0,4}", 1..12),
        kinds in prop::collection::vec(0i32..8, 12),
        merges in prop::collection::vec("[ab é]{0,4}", 0..4),
        text in "[ab<0x>\u{2581}é ]{0,20}",
        spm in any::<bool>(),
    ) {
        let n = tokens.len();
        let vocab = Vocab {
            model: if spm { "llama" } else { "gpt2" }.into(),
            kinds: kinds.into_iter().take(n).map(TokenKind::from_ggml).collect(),
            scores: (0..n).map(|i| (i % 3) as f32).collect(),
            tokens, merges,
            ..Vocab::default()
        };
        if let Ok(t) = Tokenizer::from_vocab(vocab) {
            if let Ok(p) = t.encode_with_offsets(&text) {
                prop_assert!(p.ends.is_sorted());
                prop_assert!(p.ids.iter().all(|id| (*id as usize) < n));
                t.decode(&p.ids);
            }
            let _ = t.prompt(&text);
            let _ = t.encode_plain(&text);
        }
    }
}
