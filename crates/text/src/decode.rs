//! Token by token back to text, never cutting a character in two.

use crate::Tokenizer;

/// Turns a stream of ids into text. Bytes of an unfinished character are held back until it is complete; bytes that
/// can never become one come out as U+FFFD.
#[derive(Debug)]
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
    strip_blank: bool,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, strip_blank: bool) -> Self {
        Decoder { tokenizer, pending: Vec::new(), strip_blank }
    }

    /// Takes one id and gives the text that it completes, perhaps none. Control tokens, unknown tokens and ids
    /// outside the vocabulary have no text.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_special(id) {
            return String::new();
        }
        let piece = self.tokenizer.piece(id).unwrap_or_default();
        let piece = match piece.split_first() {
            Some((b' ', rest)) if self.strip_blank => rest,
            _ => piece,
        };
        self.strip_blank = false;
        self.pending.extend_from_slice(piece);
        let mut out = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            used += chunk.valid().len();
            if chunk.invalid().is_empty() {
                break;
            }
            let at_end = used + chunk.invalid().len() == self.pending.len();
            if at_end && may_continue(chunk.invalid()) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            used += chunk.invalid().len();
        }
        self.pending.drain(..used);
        out
    }

    /// What is held back, as U+FFFD, at the end of the stream.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Whether `bytes`, the invalid end of a text, are the beginning of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
