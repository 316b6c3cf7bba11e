//! The built-in corpus as training data: as many stories as the steps need, others held out, and how low their loss
//! can become.

use std::ops::Range;

use planish_base::Result;
use planish_text::tales::{self, Verdict};
use planish_text::{Dataset, Example, LoadOptions, Tokenizer};

use crate::config::{EvalSplit, RunConfig};

/// The first story held out: no training story has such a number.
const FIRST_HELD_OUT: u64 = 1 << 40;
/// Stories held out, unless a number is given.
const HELD_OUT: usize = 200;
/// A longer run sees them more than once.
const MOST: usize = 200_000;

/// The training stories with their places: each step has its own.
pub fn texts(config: &RunConfig) -> impl Iterator<Item = (String, String)> {
    let wanted = config.steps.map_or(MOST, |steps| steps.saturating_mul(config.batch_size)).min(MOST);
    stories(config.seed, 0..wanted as u64)
}

/// The training stories.
///
/// # Errors
/// As [`Dataset::of_texts`].
pub fn train(config: &RunConfig, tokenizer: &Tokenizer, o: &LoadOptions) -> Result<Dataset> {
    Dataset::of_texts(texts(config), tokenizer, o)
}

/// The stories held out.
///
/// # Errors
/// As [`Dataset::of_texts`].
pub fn held_out(config: &RunConfig, tokenizer: &Tokenizer, o: &LoadOptions) -> Result<Dataset> {
    Dataset::of_texts(held_out_stories(config), tokenizer, o)
}

fn held_out_stories(config: &RunConfig) -> impl Iterator<Item = (String, String)> {
    let wanted = match config.eval_split {
        EvalSplit::Count(n) => n,
        EvalSplit::Fraction(_) => HELD_OUT,
    };
    stories(config.seed, FIRST_HELD_OUT..FIRST_HELD_OUT + wanted as u64)
}

/// The exact nats of the held-out stories under their grammar, a trained token of `examples`.
pub fn floor(config: &RunConfig, examples: &[&Example]) -> Option<f64> {
    let nats = |(_, story): (String, String)| match tales::check(&story) {
        Verdict::Whole { nats } => Some(nats),
        _ => None,
    };
    let nats: f64 = held_out_stories(config).map(nats).sum::<Option<f64>>()?;
    Some(nats / examples.iter().map(|e| e.trained_tokens()).sum::<usize>() as f64)
}

fn stories(seed: u64, numbers: Range<u64>) -> impl Iterator<Item = (String, String)> {
    numbers.map(move |i| (format!("tales:{i}"), tales::story(seed, i)))
}
