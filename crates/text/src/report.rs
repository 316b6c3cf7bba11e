//! What a data set amounts to, for the plan that is shown before the first step.

use serde::Serialize;

use crate::{Example, Tokenizer};

/// Counts of a data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Examples after the length policy.
    pub examples: usize,
    /// Tokens of these.
    pub tokens: usize,
    /// Tokens that are targets of the loss.
    pub trained_tokens: usize,
    /// Trained end-of-turn tokens an example; `None` without a tokenizer.
    pub end_of_turn: Option<EndOfTurn>,
    /// Examples left out because of their length.
    pub dropped: usize,
    /// Examples that lost their end.
    pub truncated: usize,
    /// Examples cut into several.
    pub split: usize,
    /// Lengths before the length policy.
    pub lengths: Lengths,
}

/// Trained tokens that end a generation, counted an example. A minimum of 0: that example does not teach to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EndOfTurn {
    /// Fewest.
    pub min: usize,
    /// On average.
    pub mean: f64,
}

/// Percentiles of example lengths in tokens (nearest rank).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lengths {
    /// Median.
    pub p50: usize,
    /// 95 %.
    pub p95: usize,
    /// 99 %.
    pub p99: usize,
    /// The longest.
    pub max: usize,
}

impl Lengths {
    fn of(examples: &[Example]) -> Lengths {
        let mut sorted: Vec<usize> = examples.iter().map(|e| e.ids.len()).collect();
        sorted.sort_unstable();
        let rank = |percent: usize| {
            let r = (sorted.len() * percent).div_ceil(100);
            sorted.get(r.saturating_sub(1)).copied().unwrap_or(0)
        };
        Lengths { p50: rank(50), p95: rank(95), p99: rank(99), max: rank(100) }
    }
}

impl Report {
    /// Counts `examples` as they are.
    pub fn measure(examples: &[Example], tokenizer: Option<&Tokenizer>) -> Report {
        let mut report = Report { lengths: Lengths::of(examples), ..Report::default() };
        report.recount(examples, tokenizer);
        report
    }

    /// Counts again after the length policy; lengths and what the policy did stay.
    pub(crate) fn recount(&mut self, examples: &[Example], tokenizer: Option<&Tokenizer>) {
        self.examples = examples.len();
        self.tokens = examples.iter().map(|e| e.ids.len()).sum();
        self.trained_tokens = examples.iter().map(Example::trained_tokens).sum();
        self.end_of_turn = tokenizer.map(|t| {
            let ends = |e: &Example| {
                e.ids.iter().zip(&e.trained).filter(|(id, on)| **on && t.is_end_of_generation(**id)).count()
            };
            let counts: Vec<usize> = examples.iter().map(ends).collect();
            let total: usize = counts.iter().sum();
            EndOfTurn {
                min: counts.iter().copied().min().unwrap_or(0),
                mean: total as f64 / counts.len().max(1) as f64,
            }
        });
    }
}
