//! SentencePiece as llama.cpp does it (`tokenizer.ggml.model` = `llama`): characters are merged pairwise, the best
//! score first, and what is no token at the end is written as bytes `<0xNN>`.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use planish_base::{Error, Result};

use crate::tokenizer::Sink;
use crate::vocab::{TokenKind, Vocab};

/// U+2581, which SentencePiece writes for a blank.
pub(crate) const BLANK: char = '\u{2581}';

#[derive(Debug)]
pub(crate) struct Spm {
    /// Text -> (id, score). Without control, unknown and byte tokens: text never merges into one of these.
    ids: HashMap<String, (u32, f32)>,
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
    longest: usize,
    /// No token has a line break behind something else.
    breaks_apart: bool,
}

/// A character, or several merged into the first of them; `len` = 0 once merged into another.
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

/// The value of a byte token `<0xNN>`.
pub(crate) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // from_str_radix alone would take `+F`.
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// Least bytes of a part of a long text.
const PART: usize = 1 << 16;

/// Offsets of the line breaks that stand behind something else than a line break.
fn line_starts(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    (1..bytes.len()).filter(|i| bytes[*i] == b'\n' && bytes[*i - 1] != b'\n').collect()
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, unk: Option<u32>) -> Result<Spm> {
        if vocab.scores.len() != vocab.tokens.len() {
            return Err(Error::input("length", "tokenizer.ggml.scores is absent, but the model needs it"));
        }
        let mut spm =
            Spm { ids: HashMap::new(), bytes: vec![None; 256], unk, longest: 0, breaks_apart: true };
        for ((id, token), score) in (0u32..).zip(&vocab.tokens).zip(&vocab.scores) {
            match vocab.kind(id) {
                TokenKind::Control | TokenKind::Unknown => {}
                TokenKind::Byte => {
                    let byte = byte_of(token).ok_or_else(|| {
                        let text = format!("token {id} is {token:?}, expected a byte as <0xNN>");
                        Error::input("byte token", text)
                    })?;
                    spm.bytes[usize::from(byte)].get_or_insert(id);
                }
                _ if token.is_empty() => {}
                _ => {
                    // -0.0 and 0.0 are one score to llama.cpp; total_cmp tells them apart.
                    spm.ids.insert(token.clone(), (id, *score + 0.0));
                    spm.longest = spm.longest.max(token.len());
                    spm.breaks_apart &= line_starts(token).is_empty();
                }
            }
        }
        Ok(spm)
    }

    /// Gives the tokens of `text`, which begins at byte `offset` of the whole; `prefix` puts a blank in front. The
    /// tables of a text are a hundred times its size, so it is taken in parts where no token can reach across.
    pub(crate) fn encode(&self, text: &str, offset: usize, prefix: bool, out: Sink<'_>) -> Result<()> {
        let (mut done, mut prefix) = (0, prefix);
        let breaks = if self.breaks_apart && text.len() > PART { line_starts(text) } else { Vec::new() };
        for at in breaks {
            if at - done >= PART {
                self.encode_part(&text[done..at], offset + done, prefix, out)?;
                (done, prefix) = (at, false);
            }
        }
        self.encode_part(&text[done..], offset + done, prefix, out)
    }

    fn encode_part(&self, text: &str, offset: usize, prefix: bool, out: Sink<'_>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut escaped = String::with_capacity(text.len() + 3);
        let mut symbols = Vec::with_capacity(text.len());
        let mut ends = Vec::with_capacity(text.len());
        let mut end = offset;
        for c in prefix.then_some(None).into_iter().chain(text.chars().map(Some)) {
            let start = escaped.len();
            escaped.push(c.filter(|c| *c != ' ').unwrap_or(BLANK));
            let i = symbols.len();
            end += c.map_or(0, char::len_utf8);
            ends.push(end);
            symbols.push(Symbol {
                start,
                len: escaped.len() - start,
                prev: i.checked_sub(1),
                next: Some(i + 1),
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        self.merge(&escaped, &mut symbols);
        let mut at = Some(0);
        let mut begin = offset;
        while let Some(i) = at {
            let s = &symbols[i];
            // A symbol covers the characters up to the next symbol.
            let end = ends[s.next.unwrap_or(ends.len()) - 1];
            self.emit(&escaped[s.start..s.start + s.len], begin, end, out)?;
            begin = end;
            at = s.next;
        }
        Ok(())
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.propose(text, symbols, Some(right - 1), Some(right), &mut queue);
        }
        while let Some(Bigram { left, right, len, .. }) = queue.pop() {
            let (a, b) = (symbols[left].len, symbols[right].len);
            // A part was merged since the pair was proposed.
            if a == 0 || b == 0 || a + b != len {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].prev = Some(left);
            }
            self.propose(text, symbols, symbols[left].prev, Some(left), &mut queue);
            self.propose(text, symbols, Some(left), next, &mut queue);
        }
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
        queue: &mut BinaryHeap<Bigram>,
    ) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return;
        }
        let start = symbols[left].start;
        if let Some((_, score)) = self.ids.get(&text[start..start + len]) {
            queue.push(Bigram { score: *score, left, right, len });
        }
    }

    /// One symbol as its token, or as bytes, or as the unknown token.
    fn emit(&self, symbol: &str, begin: usize, end: usize, out: Sink<'_>) -> Result<()> {
        if let Some((id, _)) = self.ids.get(symbol) {
            out(*id, end);
            return Ok(());
        }
        let ids: Option<Vec<u32>> = symbol.bytes().map(|b| self.bytes[usize::from(b)]).collect();
        match (ids, self.unk) {
            (Some(ids), _) => {
                for (i, id) in ids.iter().enumerate() {
                    let last = i + 1 == ids.len();
                    out(*id, if last { end } else { end.min(begin + i + 1) });
                }
            }
            (None, Some(unk)) => out(unk, end),
            (None, None) => {
                let text = format!("the vocabulary cannot write {symbol:?} and has no unknown token");
                return Err(Error::input("byte token", text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's comparator: of equal scores the leftmost pair merges first.
    #[test]
    fn equal_scores_merge_from_the_left() {
        let tokens = ["a", "b", "aa", "ab", "bb"].map(String::from).to_vec();
        let vocab = Vocab { scores: vec![0.0, 0.0, -1.0, -1.0, -0.5], tokens, ..Vocab::default() };
        let spm = Spm::new(&vocab, None).unwrap();
        let ids = |text| {
            let mut ids = Vec::new();
            spm.encode(text, 0, false, &mut |id, _| ids.push(id)).unwrap();
            ids
        };
        assert_eq!(ids("aaaaa"), [2, 2, 0]);
        assert_eq!(ids("aab"), [2, 1]);
        assert_eq!(ids("abb"), [0, 4]);
    }

    /// A token that the text does not hold, but that has a line break behind something else, forbids the parts.
    #[test]
    fn a_text_in_parts_is_the_text() {
        let spm = |last: &str| {
            let words = ["\u{2581}", "a", "b", "\n", "\n\n", "\u{2581}a", "ab", "a\u{2581}", "ba", last];
            let tokens = words.map(String::from).to_vec();
            let scores = (0..tokens.len()).map(|i| -((i * 7 % 10) as f32)).collect();
            Spm::new(&Vocab { scores, tokens, ..Vocab::default() }, Some(0)).unwrap()
        };
        let tokens = |spm: &Spm, text: &str| {
            let mut out = Vec::new();
            spm.encode(text, 3, true, &mut |id, end| out.push((id, end))).unwrap();
            out
        };
        let (parts, whole) = (spm("bbb"), spm("zz\n"));
        assert!(parts.breaks_apart && !whole.breaks_apart);
        let line = |i: usize| ["abba ab a", "\n", " ba\n\n", "b a\n", "\n\n\nab ", "\na"][i * i % 7 % 6];
        let text: String = (0..80_000).map(line).collect();
        assert!(text.len() > 4 * PART);
        assert!(tokens(&parts, &text) == tokens(&whole, &text));
        // Without a line break there is one part.
        let text = "ab ".repeat(PART);
        assert!(tokens(&parts, &text) == tokens(&whole, &text));
    }

    #[test]
    fn only_two_hexadecimal_digits_are_a_byte() {
        assert_eq!((byte_of("<0x0A>"), byte_of("<0xff>")), (Some(10), Some(255)));
        for bad in ["<0x-1>", "<0x100>", "<0xG0>", "<0x", "<0x+F>", "<0x>", "0A", ""] {
            assert_eq!(byte_of(bad), None, "{bad}");
        }
    }
}
