//! Learning a byte-level BPE from text: the most frequent pair of neighbouring tokens becomes a token, again and again
//! (Sennrich, Haddow and Birch, 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1).
//!
//! The result is a function of the texts alone. Of equally frequent pairs the one of the smaller ids is merged, words are
//! visited in the order of their bytes, and counts are whole numbers of 64 bits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use planish_base::{Error, Result};

use crate::bpe::byte_char;
use crate::pre::Pre;
use crate::vocab::{TokenKind, Vocab};

/// How text is cut into words: GPT-2's rule, the one that every program with byte-level BPE knows.
const PRE: &str = "gpt-2";
/// Begins and ends a document.
const END_OF_TEXT: &str = "<|endoftext|>";
/// A pair that occurs once says nothing about other texts.
const MIN_COUNT: u64 = 2;
/// A merge rewrites all words it occurs in, so a longer one is counted in pieces. Words of a language are shorter.
const MAX_WORD_BYTES: usize = 1_024;
/// 256 bytes, one merge, the end of a text.
const MIN_VOCAB: usize = 258;
const MAX_VOCAB: usize = 1 << 20;

/// Two neighbouring tokens.
type Pair = (u32, u32);

/// Learns a byte-level BPE of at most `vocab_size` tokens, all counted: 256 bytes, merges, and `<|endoftext|>`, which is
/// BOS and EOS. It is smaller where the texts have fewer pairs that occur twice. Memory grows with the number of different
/// words, not with the texts.
///
/// Errors: a size outside 258 to 2^20 (kind `Usage`); texts without a pair that occurs twice.
pub fn train_bpe<T: AsRef<str>>(texts: impl IntoIterator<Item = T>, vocab_size: usize) -> Result<Vocab> {
    check_size(vocab_size)?;
    let mut words = WordCounts::new()?;
    for text in texts {
        words.add(text.as_ref())?;
    }
    words.learn(vocab_size)
}

/// How often each word occurs: what [`train_bpe`] needs of the texts, for callers who read them piece by piece.
#[derive(Debug)]
pub struct WordCounts {
    pre: Pre,
    counts: HashMap<Box<str>, u64>,
}

impl WordCounts {
    /// No words yet.
    pub fn new() -> Result<WordCounts> {
        Ok(WordCounts { pre: Pre::new(Some(PRE))?, counts: HashMap::new() })
    }

    /// Counts the words of `text`. `<|endoftext|>` in it is a token of its own and no word.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let WordCounts { pre, counts } = self;
        for part in text.split(END_OF_TEXT) {
            pre.words(part, &mut |mut word| {
                while !word.is_empty() {
                    let (piece, rest) = word.split_at(word.floor_char_boundary(MAX_WORD_BYTES));
                    word = rest;
                    match counts.get_mut(piece) {
                        Some(count) => *count += 1,
                        None => drop(counts.insert(piece.into(), 1)),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Number of different words.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether no word was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The vocabulary of these words; see [`train_bpe`].
    pub fn learn(self, vocab_size: usize) -> Result<Vocab> {
        check_size(vocab_size)?;
        let mut tokens = byte_tokens();
        let mut merges = Vec::new();
        let mut corpus = Corpus::new(self.counts, &tokens);
        while tokens.len() + 1 < vocab_size {
            let Some(pair) = corpus.most_frequent() else { break };
            let (left, right) = (&tokens[pair.0 as usize], &tokens[pair.1 as usize]);
            merges.push(format!("{left} {right}"));
            let joined = [left.as_str(), right].concat();
            corpus.merge(pair, tokens.len() as u32);
            tokens.push(joined);
        }
        if merges.is_empty() {
            return Err(Error::input(
                "too little text",
                "no two bytes stand side by side twice in the texts",
            )
            .with_hint("give more text to learn a vocabulary from"));
        }
        Ok(vocabulary(tokens, merges))
    }
}

fn check_size(vocab_size: usize) -> Result<()> {
    if (MIN_VOCAB..=MAX_VOCAB).contains(&vocab_size) {
        return Ok(());
    }
    let text = format!("a vocabulary of {vocab_size} tokens, expected {MIN_VOCAB} to {MAX_VOCAB}");
    Err(Error::usage("vocabulary size", text).with_hint(
        "256 tokens are bytes and one ends a text; small models take 2,000 to 50,000 tokens in all",
    ))
}

/// The tokens of single bytes in the order of GPT-2's vocabulary, which is that of their characters.
fn byte_tokens() -> Vec<String> {
    let mut chars: Vec<char> = (0..=255).map(byte_char).collect();
    chars.sort_unstable();
    chars.into_iter().map(String::from).collect()
}

/// With BOS in front and EOS behind, a document stands between two ends of text, so a model that is given BOS alone begins
/// a document, and the end it learns to write is the only control token there is.
fn vocabulary(mut tokens: Vec<String>, merges: Vec<String>) -> Vocab {
    let end = tokens.len() as u32;
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    tokens.push(END_OF_TEXT.into());
    kinds.push(TokenKind::Control);
    Vocab {
        model: "gpt2".into(),
        pre: Some(PRE.into()),
        tokens,
        kinds,
        merges,
        bos: Some(end),
        eos: Some(end),
        add_bos: Some(true),
        ..Vocab::default()
    }
}

/// A word as the tokens it is made of so far.
struct Word {
    tokens: Vec<u32>,
    count: u64,
}

/// Where a pair occurs.
#[derive(Default)]
struct Occurrences {
    count: u64,
    /// Indices of words, ascending. Some may have lost the pair to other merges since.
    words: Vec<u32>,
}

struct Corpus {
    words: Vec<Word>,
    pairs: HashMap<Pair, Occurrences>,
    /// Greatest count first, then smallest ids. A count may be out of date: after a pair is entered it only falls.
    queue: BinaryHeap<(u64, Reverse<Pair>)>,
}

impl Corpus {
    fn new(counts: HashMap<Box<str>, u64>, byte_tokens: &[String]) -> Corpus {
        let mut id_of = [0u32; 256];
        for (id, token) in (0u32..).zip(byte_tokens) {
            for byte in token.chars().filter_map(crate::bpe::char_byte) {
                id_of[usize::from(byte)] = id;
            }
        }
        let mut counts: Vec<(Box<str>, u64)> = counts.into_iter().collect();
        counts.sort_unstable();
        let ids = |word: &str| word.bytes().map(|b| id_of[usize::from(b)]).collect();
        let words = counts.into_iter().map(|(word, count)| Word { tokens: ids(&word), count }).collect();
        let mut corpus = Corpus { words, pairs: HashMap::new(), queue: BinaryHeap::new() };
        let mut new = Vec::new();
        for (index, word) in (0u32..).zip(&corpus.words) {
            for pair in neighbours(&word.tokens) {
                enter(&mut corpus.pairs, pair, index, word.count, &mut new);
            }
        }
        corpus.enqueue(new);
        corpus
    }

    /// The most frequent pair, if any occurs often enough.
    fn most_frequent(&mut self) -> Option<Pair> {
        while let Some((count, Reverse(pair))) = self.queue.pop() {
            let now = self.pairs.get(&pair).map_or(0, |p| p.count);
            if now < MIN_COUNT {
                self.pairs.remove(&pair);
            } else if now < count {
                self.queue.push((now, Reverse(pair)));
            } else {
                return Some(pair);
            }
        }
        None
    }

    /// Replaces `pair` by the token `joined`, which no word holds yet.
    fn merge(&mut self, pair: Pair, joined: u32) {
        let occurrences = self.pairs.remove(&pair).unwrap_or_default();
        let mut new = Vec::new();
        for index in occurrences.words {
            let word = &mut self.words[index as usize];
            let merged = replace(&word.tokens, pair, joined);
            if merged.len() == word.tokens.len() {
                continue;
            }
            for lost in neighbours(&word.tokens) {
                if let Some(p) = self.pairs.get_mut(&lost) {
                    p.count -= word.count;
                }
            }
            for found in neighbours(&merged) {
                if found.0 == joined || found.1 == joined {
                    enter(&mut self.pairs, found, index, word.count, &mut new);
                } else if let Some(p) = self.pairs.get_mut(&found) {
                    p.count += word.count;
                }
            }
            word.tokens = merged;
        }
        self.enqueue(new);
    }

    fn enqueue(&mut self, new: Vec<Pair>) {
        let counted = new.into_iter().filter_map(|pair| Some((self.pairs.get(&pair)?.count, Reverse(pair))));
        self.queue.extend(counted);
    }
}

fn neighbours(tokens: &[u32]) -> impl Iterator<Item = Pair> {
    tokens.iter().copied().zip(tokens.iter().copied().skip(1))
}

/// Counts one occurrence of `pair` in the word `index`, which stands `count` times in the texts; a pair that was not there
/// is put on the list `new`.
fn enter(pairs: &mut HashMap<Pair, Occurrences>, pair: Pair, index: u32, count: u64, new: &mut Vec<Pair>) {
    let occurrences = pairs.entry(pair).or_insert_with(|| {
        new.push(pair);
        Occurrences::default()
    });
    occurrences.count += count;
    if occurrences.words.last() != Some(&index) {
        occurrences.words.push(index);
    }
}

/// From the left, as encoding does: of three equal tokens in a row the first two are a pair.
fn replace(tokens: &[u32], pair: Pair, joined: u32) -> Vec<u32> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut rest = tokens;
    while let Some((first, after)) = rest.split_first() {
        let found = *first == pair.0 && after.first() == Some(&pair.1);
        out.push(if found { joined } else { *first });
        rest = if found { &after[1..] } else { after };
    }
    out
}
