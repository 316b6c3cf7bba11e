//! Finds the tokens that are recognised in text as a whole (control, user-defined, unknown).

use std::ops::Range;

use crate::vocab::{TokenKind, Vocab};

/// A piece of text: a recognised token, or ordinary text between two of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    Text(Range<usize>),
    Token(u32, Range<usize>),
}

/// Which tokens count.
#[derive(Clone, Copy)]
pub(crate) enum Recognise<'a> {
    /// All; but no control token that begins before and ends after one of these byte offsets (ascending).
    All { blocked: &'a [usize] },
    /// Only user-defined ones, as llama.cpp does with `parse_special` off.
    UserDefined,
}

/// Sorted texts: narrowing a range of them byte by byte is a walk down a trie.
#[derive(Debug, Default)]
pub(crate) struct Specials {
    sorted: Vec<(Vec<u8>, u32, bool)>,
    first: Vec<bool>,
}

impl Specials {
    pub(crate) fn new(vocab: &Vocab) -> Specials {
        let mut sorted = Vec::new();
        let mut first = vec![false; 256];
        for (id, text) in (0u32..).zip(&vocab.tokens) {
            if let (true, Some(byte)) = (vocab.is_matched_whole(id), text.as_bytes().first()) {
                first[usize::from(*byte)] = true;
                sorted.push((text.as_bytes().to_vec(), id, vocab.kind(id) != TokenKind::UserDefined));
            }
        }
        sorted.sort_unstable();
        Specials { sorted, first }
    }

    /// Leftmost, then longest match wins.
    pub(crate) fn fragments(&self, text: &str, what: Recognise<'_>) -> Vec<Fragment> {
        let mut out = Vec::new();
        let (mut begin, mut at) = (0, 0);
        let mut blocked = match what {
            Recognise::All { blocked } => blocked,
            Recognise::UserDefined => &[],
        };
        while let Some(byte) = text.as_bytes().get(at) {
            if !self.first[usize::from(*byte)] {
                at += 1;
                continue;
            }
            while blocked.first().is_some_and(|b| *b < at) {
                blocked = &blocked[1..];
            }
            let control_limit = match what {
                Recognise::All { .. } => blocked.first().copied().unwrap_or(usize::MAX),
                Recognise::UserDefined => at,
            };
            match self.longest(&text.as_bytes()[at..], control_limit.saturating_sub(at)) {
                Some((id, len)) => {
                    if begin < at {
                        out.push(Fragment::Text(begin..at));
                    }
                    out.push(Fragment::Token(id, at..at + len));
                    at += len;
                    begin = at;
                }
                None => at += 1,
            }
        }
        if begin < text.len() {
            out.push(Fragment::Text(begin..text.len()));
        }
        out
    }

    /// Byte offsets where a control token's text begins, overlaps included.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        let bytes = text.as_bytes();
        let candidates = (0..bytes.len()).filter(|i| self.first[usize::from(bytes[*i])]);
        candidates.filter(|i| self.any_control(&bytes[*i..])).collect()
    }

    fn any_control(&self, text: &[u8]) -> bool {
        let mut found = false;
        self.walk(text, |_, _, control| found |= control);
        found
    }

    /// The longest token that `text` starts with; a control token may have at most `control_limit` bytes.
    fn longest(&self, text: &[u8], control_limit: usize) -> Option<(u32, usize)> {
        let mut best = None;
        self.walk(text, |id, len, control| {
            if !control || len <= control_limit {
                best = Some((id, len));
            }
        });
        best
    }

    /// Calls `hit(id, length, is control)` for every token that `text` starts with, shortest first.
    fn walk(&self, text: &[u8], mut hit: impl FnMut(u32, usize, bool)) {
        let mut range = &self.sorted[..];
        for (depth, byte) in text.iter().enumerate() {
            let low = range.partition_point(|(t, ..)| t.get(depth).is_none_or(|b| b < byte));
            let high = range.partition_point(|(t, ..)| t.get(depth).is_none_or(|b| b <= byte));
            range = &range[low..high];
            let Some((t, id, control)) = range.first() else { return };
            if t.len() == depth + 1 {
                hit(*id, t.len(), *control);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials() -> Specials {
        let tokens = ["<a>", "<a>b", "<u>", "x"].map(String::from).to_vec();
        let kinds = vec![TokenKind::Control, TokenKind::Control, TokenKind::UserDefined, TokenKind::Normal];
        Specials::new(&Vocab { tokens, kinds, ..Vocab::default() })
    }

    #[test]
    fn longest_match_wins_and_the_rest_is_text() {
        let got = specials().fragments("x<a>b<u><a>y", Recognise::All { blocked: &[] });
        use Fragment::{Text, Token};
        assert_eq!(got, [Text(0..1), Token(1, 1..5), Token(2, 5..8), Token(0, 8..11), Text(11..12)]);
    }

    #[test]
    fn plain_text_and_blocked_offsets_keep_control_tokens_out() {
        use Fragment::{Text, Token};
        let s = specials();
        assert_eq!(s.fragments("<a><u>", Recognise::UserDefined), [Text(0..3), Token(2, 3..6)]);
        let blocked = s.control_starts("<a><a>b");
        assert_eq!(blocked, [0, 3]);
        assert_eq!(s.fragments("<a><a>b", Recognise::All { blocked: &blocked }), [Text(0..7)]);
        assert_eq!(s.fragments("<a><a>b", Recognise::All { blocked: &[0] }), [Text(0..3), Token(1, 3..7)]);
    }
}
