//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`). Merging is done by the `tokenizers` crate, word by word with a
//! heap, so a word of n bytes costs n log n.

use std::collections::{HashMap, HashSet};

use planish_base::{Error, Result};
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab as WordIds};

use crate::pre::Pre;
use crate::tokenizer::Sink;
use crate::vocab::Vocab;

#[derive(Debug)]
pub(crate) struct Bpe {
    model: BPE,
    pre: Pre,
}

/// The character that stands for `byte` in a byte-level vocabulary (GPT-2's `bytes_to_unicode`).
pub(crate) fn byte_char(byte: u8) -> char {
    let b = u32::from(byte);
    let code = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => b,
        0..=0x20 => 0x100 + b,
        0x7F..=0xA0 => 0x121 + (b - 0x7F),
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The inverse of [`byte_char`].
pub(crate) fn char_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        b @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(b as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

impl Bpe {
    pub(crate) fn new(vocab: &Vocab) -> Result<Bpe> {
        let pre = Pre::new(vocab.pre.as_deref())?;
        if vocab.merges.is_empty() {
            return Err(Error::input("merge", "tokenizer.ggml.merges is absent or empty")
                .with_hint("convert the model again with a current converter"));
        }
        let ids: HashMap<&str, u32> =
            vocab.tokens.iter().map(String::as_str).zip(0u32..).filter(|(t, _)| !t.is_empty()).collect();
        let mut seen = HashSet::new();
        let mut merges = Vec::new();
        for (line, merge) in vocab.merges.iter().enumerate() {
            let pair = check_merge(&ids, merge)
                .map_err(|why| Error::input("merge", format!("merge {line} ({merge:?}) {why}")))?;
            // Of two rules for one pair the first counts, as in llama.cpp.
            if seen.insert(pair) {
                merges.push((pair.0.to_owned(), pair.1.to_owned()));
            }
        }
        let owned =
            vocab.tokens.iter().cloned().zip(0u32..).filter(|(t, _)| !t.is_empty()).collect::<WordIds>();
        let model = BPE::builder()
            .vocab_and_merges(owned, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|e| Error::input("merge", format!("merges do not fit the vocabulary: {e}")))?;
        Ok(Bpe { model, pre })
    }

    pub(crate) fn add_bos(&self) -> bool {
        self.pre.add_bos
    }

    /// Gives the tokens of `text`, which begins at byte `offset` of the whole.
    pub(crate) fn encode(&self, text: &str, offset: usize, out: Sink<'_>) -> Result<()> {
        let mut end = offset;
        let mut mapped = String::new();
        self.pre.words(text, &mut |word| {
            mapped.clear();
            mapped.extend(word.bytes().map(byte_char));
            let tokens = self
                .model
                .tokenize(&mapped)
                .map_err(|e| Error::input("tokenize", format!("cannot tokenise a word: {e}")))?;
            let word_end = end + word.len();
            for token in tokens {
                end += token.value.chars().count();
                out(token.id, end);
            }
            if end != word_end {
                let text = format!("the vocabulary cannot write all bytes of {:?}", shorten(word));
                return Err(Error::input("byte token", text)
                    .with_hint("a byte-level vocabulary needs a token for each byte of the text"));
            }
            Ok(())
        })
    }
}

fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}

/// Splits `left right` and says what is wrong with it: all three parts must be tokens.
fn check_merge<'a>(ids: &HashMap<&str, u32>, merge: &'a str) -> Result<(&'a str, &'a str), String> {
    // The left part is never empty, so a blank in first place belongs to it.
    let first = merge.chars().next().map_or(0, char::len_utf8);
    let Some(blank) = merge[first..].find(' ').map(|i| i + first) else {
        return Err("has no blank between two parts".into());
    };
    let (left, right) = (&merge[..blank], &merge[blank + 1..]);
    let joined = [left, right].concat();
    match [left, right, joined.as_str()].into_iter().find(|part| !ids.contains_key(part)) {
        Some(part) => Err(format!("names {part:?}, which is not a token")),
        None => Ok((left, right)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_are_a_bijection() {
        let mut seen = HashSet::new();
        for byte in 0..=255u8 {
            let c = byte_char(byte);
            assert_eq!(char_byte(c), Some(byte));
            assert!(seen.insert(c));
        }
        assert_eq!((byte_char(b' '), byte_char(b'\n')), ('Ġ', 'Ċ'));
    }
}
