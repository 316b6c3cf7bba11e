//! Vocabularies learned from text: merges counted by hand and by Hugging Face, the same for any order, and whole in a file.
// Helpers outside of `#[test]` unwrap too, and read what they wrote.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use common::{byte_vocab, golden, strings};
use planish_store::Bytes;
use planish_store::gguf::{Gguf, Writer};
use planish_text::{Encoder, Kind, TokenKind, Tokenizer, Vocab, WordCounts, train_bpe};
use proptest::prelude::*;

const END: &str = "<|endoftext|>";

/// The text of Sennrich et al. (2016), as often as there: low 5, lower 2, newest 6, widest 3.
fn classic() -> Vec<&'static str> {
    [vec!["low"; 5], vec!["lower"; 2], vec!["newest"; 6], vec!["widest"; 3]].concat()
}

fn through_gguf(vocab: &Vocab) -> Vocab {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.gguf");
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama".into());
    vocab.to_gguf().into_iter().for_each(|(key, value)| writer.set(&key, value));
    writer.write(&path, |_, _| Ok(())).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    Vocab::from_gguf(Gguf::from_bytes(Bytes::from_vec(bytes)).unwrap().metadata()).unwrap()
}

/// Counted by hand. Pairs at first: es 9, st 9, we 8, lo 7, ow 7, ne 6, ew 6, wi id de 3, er 2. `e s` is first of two with
/// 9, since `e` < `s`; then `es t` 9. `l o` 7 is before `o w` 7; then `lo w` 7. Of `n e`, `e w`, `w est` (6) the smallest
/// ids: `e w`; then `n ew` before `ew est`. Of 3: `d est`, `i dest`, `w idest` in turn, then lower: `e r`, `low er`.
#[test]
fn the_classic_example_merges_as_counted_by_hand() {
    let vocab = train_bpe(classic(), 1_000).unwrap();
    let merges = [
        "e s", "es t", "l o", "lo w", "e w", "n ew", "new est", "d est", "i dest", "w idest", "e r", "low er",
    ];
    assert_eq!(vocab.merges, merges);
    // Nothing is left to merge: fewer tokens than asked for.
    assert_eq!(vocab.tokens.len(), 256 + merges.len() + 1);
    assert_eq!(
        vocab.tokens[256..],
        ["es", "est", "lo", "low", "ew", "new", "newest", "dest", "idest", "widest", "er", "lower", END]
    );
    // A smaller vocabulary is the beginning of a larger one.
    let small = train_bpe(classic(), 256 + 5 + 1).unwrap();
    assert_eq!(small.merges, merges[..5]);
    let t = Tokenizer::from_vocab(small).unwrap();
    let texts =
        |text| t.encode(text).unwrap().iter().map(|id| t.token_text(*id).unwrap()).collect::<Vec<_>>();
    assert_eq!(texts("lowest news"), ["low", "est", "Ġ", "n", "ew", "s"]);
}

#[test]
fn tokens_in_a_row_merge_from_the_left() {
    // (a, a) stands four times in `aaaaa`; of `aa aa a` both pairs stand once a word, twice in all.
    let vocab = train_bpe(["aaaaa", "aaaaa"], 1_000).unwrap();
    assert_eq!(vocab.merges, ["a a", "aa a", "aa aaa"]);
}

/// `golden/text/learn.json` holds what the trainer of the `tokenizers` library made of the same texts.
#[test]
fn merges_are_those_of_hugging_face() {
    let g = golden("learn.json");
    let texts = strings(&g["texts"]);
    let merges = strings(&g["merges"]);
    let vocab = train_bpe(&texts, 256 + merges.len() + 1).unwrap();
    assert_eq!(vocab.merges, merges);
    assert_eq!(vocab.tokens[..256 + merges.len()], strings(&g["tokens"]));
    assert!(merges.len() > 500);
}

#[test]
fn order_and_pieces_of_the_texts_do_not_matter() {
    let texts: Vec<String> = strings(&golden("learn.json")["texts"]);
    let want = train_bpe(&texts, 600).unwrap();
    let back: Vec<&String> = texts.iter().rev().collect();
    assert_eq!(train_bpe(back, 600).unwrap(), want);
    // Every map has a hash seed of its own: again and again the same.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let texts = texts.clone();
            std::thread::spawn(move || train_bpe(&texts, 600).unwrap())
        })
        .collect();
    threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), want));
    // All counts tie: the smallest ids are first, whatever the order.
    for words in [["ab", "cd", "ef"], ["ef", "ab", "cd"], ["cd", "ef", "ab"]] {
        let twice = [words, words].concat();
        assert_eq!(train_bpe(twice, 300).unwrap().merges, ["a b", "c d", "e f"]);
    }
}

#[test]
fn documents_stand_between_ends_of_text() {
    let vocab = train_bpe(classic(), 300).unwrap();
    let end = vocab.tokens.len() as u32 - 1;
    assert_eq!((vocab.bos, vocab.eos, vocab.add_bos), (Some(end), Some(end), Some(true)));
    assert_eq!((vocab.kind(end), vocab.kind(end - 1)), (TokenKind::Control, TokenKind::Normal));
    let t = Tokenizer::from_vocab(vocab).unwrap();
    let encoder = Encoder { tokenizer: Some(&t), ..Encoder::default() };
    let low = t.encode("low").unwrap()[0];
    let example = encoder.text("low").unwrap();
    assert_eq!((example.ids, example.trained), (vec![end, low, end], vec![false, true, true]));
    // A text that brings its own ends gets no more.
    assert_eq!(encoder.text("<|endoftext|>low<|endoftext|>").unwrap().ids, [end, low, end]);
    assert_eq!(t.prompt("").unwrap(), [end]);
    assert!(t.is_end_of_generation(end));
    assert_eq!(t.decode(&[end, low, end]), "low");
}

#[test]
fn ends_of_text_are_no_words() {
    let joined = classic().join(END);
    assert_eq!(train_bpe([joined], 300).unwrap(), train_bpe(classic(), 300).unwrap());
}

#[test]
fn sizes_and_texts_that_cannot_be_are_errors() {
    for size in [0, 256, 257, (1 << 20) + 1, usize::MAX] {
        let e = train_bpe(classic(), size).unwrap_err();
        assert_eq!((e.code(), e.kind()), ("vocabulary size", Kind::Usage));
        assert!(e.to_string().contains("258 to 1048576"), "{e}");
    }
    assert_eq!(train_bpe(classic(), 258).unwrap().merges.len(), 1);
    assert_eq!(train_bpe(classic(), 1 << 20).unwrap().merges.len(), 12);
    for texts in [vec![], vec![""], vec!["a", "b"], vec!["ab"]] {
        assert_eq!(train_bpe(texts, 300).unwrap_err().code(), "too little text");
    }
}

#[test]
fn a_huge_word_takes_bounded_time() {
    let word = "ab é".repeat(50_000).replace(' ', "");
    let mut words = WordCounts::new().unwrap();
    words.add(&word).unwrap();
    assert!(words.len() <= 8, "counted in pieces");
    let t = Tokenizer::from_vocab(words.learn(300).unwrap()).unwrap();
    assert_eq!(t.decode(&t.encode(&word).unwrap()), word);
}

#[test]
fn a_file_keeps_the_whole_vocabulary() {
    let learned = train_bpe(classic(), 300).unwrap();
    assert_eq!(through_gguf(&learned), learned);
    let ids =
        Vocab { eot: Some(260), eom: Some(261), unk: Some(262), pad: Some(263), ..byte_vocab(None, None) };
    assert_eq!(through_gguf(&ids), ids);
    let spm = Vocab {
        model: "llama".into(),
        tokens: ["<unk>", "<s>", "</s>", "<0x0A>", "a", "b"].map(String::from).to_vec(),
        scores: vec![0.0, 0.0, 0.0, 0.0, -1.5, -2.5],
        kinds: (1..=6).map(TokenKind::from_ggml).collect(),
        bos: Some(1),
        add_space_prefix: Some(false),
        ..Vocab::default()
    };
    assert_eq!(through_gguf(&spm), spm);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_survives_a_vocabulary_learned_from_another(
        texts in prop::collection::vec("[ab]{0,12}|\\PC{0,12}", 2..12),
        text in "\\PC{0,40}|[ \\n\\tab<|>']{0,40}",
    ) {
        let Ok(vocab) = train_bpe(texts.iter().chain(&texts), 400) else { return Ok(()) };
        prop_assert_eq!(&through_gguf(&vocab), &vocab);
        let t = Tokenizer::from_vocab(vocab).unwrap();
        prop_assert_eq!(t.decode(&t.encode_plain(&text).unwrap()), text.clone());
        // Every learned token is what encoding makes of its own text.
        for id in 256..t.vocab_size() as u32 - 1 {
            let piece = t.piece(id).unwrap();
            if let Ok(piece) = std::str::from_utf8(piece) {
                prop_assert_eq!(t.encode_plain(piece).unwrap(), [id]);
            }
        }
    }
}
