//! Generating text: prompt, sampler, stop rules, streaming.

use planish_base::{CancelToken, Result};

use crate::sampler::Sampler;
use crate::session::Session;

/// When to stop besides the model's own end of generation.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Most tokens to generate.
    pub tokens: usize,
    /// Texts that end the generation and are not part of the result.
    pub texts: Vec<String>,
    /// Go on after end-of-generation tokens.
    pub ignore_end: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    End,
    /// A stop text occurred.
    Text,
    /// The limit of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// Somebody cancelled.
    Cancelled,
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Token ids, without the one that ended the turn.
    pub ids: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub reason: StopReason,
}

/// Continues `prompt` and hands pieces of text to `on_text` as soon as no stop text can begin in them. Without a
/// tokenizer no text comes.
///
/// # Errors
/// `context` when the prompt does not fit; kind `Resource` without memory.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    sampler: &mut Sampler,
    stop: &Stop,
    cancel: &CancelToken,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generated> {
    session.prefill(prompt)?;
    let model = session.engine().model.clone();
    let tokenizer = model.tokenizer.as_ref();
    let at_start = prompt.iter().all(|id| tokenizer.is_some_and(|t| t.is_special(*id)));
    let mut decoder = tokenizer.map(|t| if at_start { t.stream_from_start() } else { t.stream() });
    let mut ids = Vec::new();
    let mut text = Text { text: String::new(), shown: 0, stops: &stop.texts, on_text };
    let reason = loop {
        if ids.len() == stop.tokens {
            break StopReason::Length;
        }
        if cancel.is_cancelled() {
            break StopReason::Cancelled;
        }
        let id = sampler.next(session.logits());
        if !stop.ignore_end && tokenizer.is_some_and(|t| t.is_end_of_generation(id)) {
            break StopReason::End;
        }
        ids.push(id);
        if let Some(d) = &mut decoder
            && text.push(&d.push(id))
        {
            break StopReason::Text;
        }
        if session.room() == 0 {
            break StopReason::Context;
        }
        session.decode(id)?;
    };
    if let Some(d) = &mut decoder
        && reason != StopReason::Text
    {
        text.push(&d.finish());
    }
    Ok(Generated { ids, text: text.finish(), reason })
}

/// The text so far, and how much of it has been handed out.
struct Text<'a> {
    text: String,
    shown: usize,
    stops: &'a [String],
    on_text: &'a mut dyn FnMut(&str),
}

impl Text<'_> {
    /// Appends; true when a stop text has occurred, which is then cut off.
    fn push(&mut self, piece: &str) -> bool {
        self.text.push_str(piece);
        let stop = self.stops.iter().filter_map(|s| self.text.find(s.as_str())).min();
        if let Some(at) = stop {
            self.text.truncate(at);
            return true;
        }
        self.show(self.text.len() - self.held_back());
        false
    }

    /// Bytes at the end that may be the beginning of a stop text.
    fn held_back(&self) -> usize {
        let longest = |stop: &String| {
            let ends = stop.char_indices().map(|(i, _)| i).skip(1);
            ends.filter(|&n| self.text.ends_with(&stop[..n])).max().unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }

    fn show(&mut self, to: usize) {
        if to > self.shown {
            (self.on_text)(&self.text[self.shown..to]);
            self.shown = to;
        }
    }

    fn finish(mut self) -> String {
        self.show(self.text.len());
        self.text
    }
}
