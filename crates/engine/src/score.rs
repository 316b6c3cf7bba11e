//! Scoring tokens: the loss of each, and the most probable alternatives.

use planish_base::{Error, Result};
use planish_compute::{Backend, Program, View};
use planish_model::{AdapterSet, Pass, Ragged};
use planish_tape::ops::Scores;
use planish_tape::{Mode, Tape};
use planish_text::{Example, batch};

use crate::engine::Engine;

/// The score of one target token.
#[derive(Clone, Debug)]
pub struct TokenScore {
    /// Its index in the example.
    pub position: usize,
    /// Its id.
    pub id: u32,
    /// Its log-probability (natural).
    pub logprob: f32,
    /// The most probable tokens with their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// Sum over many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Sum of losses in nats.
    pub total: f64,
    /// Tokens scored.
    pub tokens: u64,
}

impl Summary {
    /// Mean loss a token, in nats.
    pub fn loss(&self) -> f64 {
        self.total / self.tokens.max(1) as f64
    }

    /// exp(loss).
    pub fn perplexity(&self) -> f64 {
        planish_base::math::exp_f64(self.loss())
    }

    /// Adds an example's tokens.
    pub fn add(&mut self, scores: &[TokenScore]) {
        self.total -= scores.iter().map(|s| f64::from(s.logprob)).sum::<f64>();
        self.tokens += scores.len() as u64;
    }
}

/// The program that scores a batch of this shape.
pub fn program(engine: &Engine, batch: &Ragged, adapters: &[&AdapterSet], top: usize) -> (Program, Scores) {
    let (views, targets) = engine.inputs.views(batch);
    let mut tape = Tape::new(Mode::Infer, engine.precision().product());
    let mut pass = Pass::new(&mut tape, views, &engine.model.spec, &engine.params, adapters, None);
    let hidden = pass.hidden();
    let scores = pass.scores(hidden, &targets, top);
    let program = tape.finish();
    let placed = |v: View| program.view(&v);
    let scores = Scores { loss: placed(scores.loss), top: scores.top.map(|(i, l)| (placed(i), placed(l))) };
    (program, scores)
}

/// Bytes of arena that scoring the longest of these examples needs.
pub fn arena_bytes(engine: &Engine, examples: &[&Example], adapters: &[&AdapterSet], top: usize) -> u64 {
    let Some(longest) = examples.iter().max_by_key(|e| (e.ids.len(), e.trained_tokens())) else { return 0 };
    let b = batch(&[longest]);
    let segments = segments(&b);
    program(engine, &ragged(&b, &segments), adapters, top).0.arena_bytes()
}

/// Scores the trained tokens of an example.
///
/// # Errors
/// `token id` outside the vocabulary; `not finite` for a loss that is not a number; kind `Resource` without memory for the activations.
pub fn example(
    engine: &mut Engine,
    example: &Example,
    adapters: &[&AdapterSet],
    top: usize,
) -> Result<Vec<TokenScore>> {
    refresh(engine, adapters);
    tokens(engine, example, adapters, top)
}

fn refresh(engine: &mut Engine, adapters: &[&AdapterSet]) {
    adapters.iter().for_each(|set| set.refresh(&mut engine.backend, &engine.params));
}

fn tokens(
    engine: &mut Engine,
    example: &Example,
    adapters: &[&AdapterSet],
    top: usize,
) -> Result<Vec<TokenScore>> {
    engine.check_ids(&example.ids).map_err(|e| e.at(&example.place))?;
    let b = batch(&[example]);
    let segments = segments(&b);
    let ragged = ragged(&b, &segments);
    let (program, scores) = program(engine, &ragged, adapters, top);
    engine.run(&ragged, 1.0, &program)?;
    let losses = engine.backend.download_f32(&scores.loss);
    if let Some(i) = losses.iter().position(|l| !l.is_finite()) {
        let message =
            format!("{}: the loss of token {} is {}", example.place, b.target_rows[i] + 1, losses[i]);
        return Err(Error::input("not finite", message)
            .with_hint("the weights may hold values that are not numbers: ask `planish verify`"));
    }
    let backend = &engine.backend;
    let best =
        scores.top.map(|(ids, logprobs)| (backend.download_u32(&ids), backend.download_f32(&logprobs)));
    let token = |(i, (row, id)): (usize, (&u32, &u32))| TokenScore {
        position: *row as usize + 1,
        id: *id,
        logprob: -losses[i],
        top: best.as_ref().map_or_else(Vec::new, |(ids, logprobs)| {
            let at = i * top..(i + 1) * top;
            ids[at.clone()].iter().copied().zip(logprobs[at].iter().copied()).collect()
        }),
    };
    Ok(b.target_rows.iter().zip(&b.targets).enumerate().map(token).collect())
}

/// Mean loss over the trained tokens of many examples.
///
/// # Errors
/// As [`example`].
pub fn examples<'a>(
    engine: &mut Engine,
    examples: impl IntoIterator<Item = &'a Example>,
    adapters: &[&AdapterSet],
) -> Result<Summary> {
    refresh(engine, adapters);
    let mut summary = Summary::default();
    for e in examples {
        summary.add(&tokens(engine, e, adapters, 0)?);
    }
    Ok(summary)
}

/// The segment table of a text batch: each segment begins at position 0.
pub fn segments(b: &planish_text::Batch) -> Vec<[u32; 4]> {
    b.segments.iter().map(|s| [s.start, s.len, 0, 0]).collect()
}

/// A text batch as the model takes it.
pub fn ragged<'a>(b: &'a planish_text::Batch, segments: &'a [[u32; 4]]) -> Ragged<'a> {
    Ragged { ids: &b.tokens, positions: &b.positions, segments, rows: &b.target_rows, targets: &b.targets }
}
