//! The built-in corpus `tales`: a probabilistic grammar of short stories for children, without end and exactly known.
//!
//! A story has a hero, a friend and a thing, and calls them by the same words to its last sentence: who reads
//! it has to remember. Since every text has at most one derivation, its probability is the product of its choices, and
//! the entropy of the corpus is a sum over the tables. So one can say how far a trained model is from the best
//! possible one, and whether what it tells is a story.
//!
//! `words.rs` and `sentences.rs` are the grammar, `grammar.rs` is the machine that writes, checks and measures.

#[cfg(test)]
mod ambiguity;
mod grammar;
mod sentences;
mod words;

use std::sync::LazyLock;

use planish_base::math;
use planish_base::rng::{Purpose, Stream};

use grammar::Grammar;

static GRAMMAR: LazyLock<Grammar> = LazyLock::new(|| Grammar::new(&[sentences::RULES, words::RULES]));

/// What the grammar says of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// A whole story.
    Whole {
        /// -ln of its probability, exact up to rounding.
        nats: f64,
    },
    /// The beginning of a story or of several, perhaps cut inside a word. The empty text is one.
    Begun,
    /// No story begins so.
    Wrong {
        /// Bytes of the longest beginning of the text that begins a story, always at a character boundary.
        at: usize,
    },
}

/// Expected values of a story of the grammar, summed over its tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entropy {
    /// Entropy of a story in nats; its end is certain and adds nothing.
    pub nats_per_story: f64,
    /// Expected number of words of a story, separated by blanks.
    pub words_per_story: f64,
}

impl Entropy {
    /// Nats of a story over words of a story.
    pub fn nats_per_word(&self) -> f64 {
        self.nats_per_story / self.words_per_story
    }
}

/// Story `index` of `seed`, a pure function of both: seven or eight sentences of ASCII separated by blanks, without a
/// line break.
pub fn story(seed: u64, index: u64) -> String {
    let mut draws = 0;
    GRAMMAR.write(&mut |n| {
        // One stream a draw, so that stories need no shares of one. The remainder's bias is below n / 2^64.
        let drawn = Stream::new(seed, Purpose::Tales, draws).u64(index);
        draws += 1;
        (drawn % n as u64) as usize
    })
}

/// Whether `text` is a story, the beginning of one, or where it leaves the grammar.
pub fn check(text: &str) -> Verdict {
    let found = GRAMMAR.read(text);
    if found.whole > 0.0 {
        Verdict::Whole { nats: -math::ln(found.whole) }
    } else if found.begun > 0.0 {
        Verdict::Begun
    } else {
        Verdict::Wrong { at: found.reached }
    }
}

/// The entropy of the grammar: computed, not sampled.
pub fn entropy() -> Entropy {
    let story = GRAMMAR.expected();
    Entropy { nats_per_story: story.nats, words_per_story: story.blanks + 1.0 }
}

/// Number of distinct words: runs of letters, upper and lower case alike.
pub fn words() -> usize {
    GRAMMAR.words().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a story is cut, all that may follow shares the mass of what is there, and the empty text has the mass 1:
    /// nothing is lost or counted twice.
    #[test]
    fn the_mass_of_a_beginning_is_that_of_its_continuations() {
        assert!((GRAMMAR.read("").begun - 1.0).abs() < 1e-12);
        for index in 0..2 {
            let story = story(11, index);
            // A step that is no divisor of anything; the last byte is among the places.
            for left in (0..=story.len()).step_by(7) {
                let (begun, _) = story.split_at(story.len() - left);
                let here = GRAMMAR.read(begun);
                let mass: f64 = (b' '..=b'~')
                    .map(|next| GRAMMAR.read(&format!("{begun}{}", next as char)))
                    .map(|next| next.whole + next.begun)
                    .sum();
                assert!((mass - here.begun).abs() <= 1e-12 * here.begun, "{mass} {here:?} {begun}");
                assert_eq!(here.whole > 0.0, left == 0);
            }
        }
    }

    #[test]
    fn no_text_of_the_grammar_has_two_derivations() {
        assert_eq!(ambiguity::doubts(&GRAMMAR), [] as [String; 0]);
    }
}
