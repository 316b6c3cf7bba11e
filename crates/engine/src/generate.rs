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
    let mut out = Generated { ids: Vec::new(), text: String::new(), reason: StopReason::Length };
    let mut shown = 0;
    let mut stream_tail = Vec::new();
    while out.ids.len() < stop.tokens {
        if cancel.is_cancelled() {
            out.reason = StopReason::Cancelled;
            break;
        }
        let id = sampler.next(session.logits());
        let tokenizer = session.engine().model.tokenizer.as_ref();
        if !stop.ignore_end && tokenizer.is_some_and(|t| t.is_end_of_generation(id)) {
            out.reason = StopReason::End;
            break;
        }
        out.ids.push(id);
        if let Some(t) = tokenizer {
            append_utf8(&mut out.text, &mut stream_tail, t.decode_piece(&out.ids));
        }
        if let Some(at) = stop.texts.iter().filter_map(|s| out.text.find(s.as_str())).min() {
            out.text.truncate(at);
            out.reason = StopReason::Text;
            break;
        }
        let safe = safe_length(&out.text, &stop.texts);
        if safe > shown {
            on_text(&out.text[shown..safe]);
            shown = safe;
        }
        if session.room() == 0 {
            out.reason = StopReason::Context;
            break;
        }
        if out.ids.len() < stop.tokens {
            session.decode(id)?;
        }
    }
    if out.text.len() > shown {
        on_text(&out.text[shown..]);
    }
    Ok(out)
}
