//! Examples that are longer than the context: never cut in silence.

use std::ops::Range;

use planish_base::{Error, Result};

use crate::report::Lengths;
use serde::{Deserialize, Serialize};

use crate::{Example, Report};

/// What becomes of an example with more tokens than the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LengthPolicy {
    /// Stop, and say which context would fit.
    #[default]
    Error,
    /// Leave the example out.
    Drop,
    /// Keep the beginning. An answer that loses its end teaches the model not to stop.
    Truncate,
    /// Cut into pieces of the context's length. Neighbours share one token, so that every trained token stays one.
    Split,
}

impl LengthPolicy {
    /// All policies with their names on the command line.
    pub const ALL: &[(&str, LengthPolicy)] = &[
        ("error", LengthPolicy::Error),
        ("drop", LengthPolicy::Drop),
        ("truncate", LengthPolicy::Truncate),
        ("split", LengthPolicy::Split),
    ];
}

/// Applies `policy` to `examples` and counts what it did in `report`. Errors: a too long example under
/// [`LengthPolicy::Error`]; nothing left.
pub fn fit(
    examples: Vec<Example>,
    context: usize,
    policy: LengthPolicy,
    report: &mut Report,
) -> Result<Vec<Example>> {
    check_context(context)?;
    let too_long = examples.iter().filter(|e| e.ids.len() > context).count();
    if too_long > 0 && policy == LengthPolicy::Error {
        return Err(too_long_error(&examples, context, too_long, &report.lengths));
    }
    let mut kept = Vec::with_capacity(examples.len());
    for example in examples {
        if example.ids.len() <= context {
            kept.push(example);
            continue;
        }
        match policy {
            LengthPolicy::Error | LengthPolicy::Drop => report.dropped += 1,
            LengthPolicy::Truncate => match truncate(example, context) {
                Some(short) => {
                    report.truncated += 1;
                    kept.push(short);
                }
                None => report.dropped += 1,
            },
            LengthPolicy::Split => {
                report.split += 1;
                kept.extend(pieces(&example, context));
            }
        }
    }
    if kept.is_empty() {
        let text = format!("no example is left: all are longer than the context of {context} tokens");
        return Err(
            Error::input("no examples", text).with_hint(format!("use --context {}", report.lengths.max))
        );
    }
    Ok(kept)
}

/// Refuses a context in which nothing could be trained.
pub(crate) fn check_context(context: usize) -> Result<()> {
    match context {
        0 | 1 => Err(Error::usage(
            "context",
            format!("a context of {context} tokens, expected at least 2 (one to read, one to predict)"),
        )),
        _ => Ok(()),
    }
}

fn too_long_error(examples: &[Example], context: usize, too_long: usize, l: &Lengths) -> Error {
    let first = examples.iter().find(|e| e.ids.len() > context);
    let first = first.map(|e| format!(", first {} with {}", e.place, e.ids.len())).unwrap_or_default();
    let text = format!(
        "{too_long} of {} examples are longer than the context of {context} tokens{first}",
        examples.len()
    );
    Error::input("too long", text).with_hint(format!(
        "--context {} fits 95 %, {} fits 99 %, {} fits all; or choose --max-length-policy drop, truncate or split",
        l.p95, l.p99, l.max
    ))
}

/// The first `context` tokens, unless none of them is trained.
fn truncate(mut example: Example, context: usize) -> Option<Example> {
    example.ids.truncate(context);
    example.trained.truncate(context);
    example.trained.contains(&true).then_some(example)
}

/// The pieces of `n` tokens, each of at most `context`, at least 2. Neighbours share a token, the last of one and
/// the first of the next, so that every token but the very first is a target once.
pub(crate) fn cuts(n: usize, context: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..n.saturating_sub(1)).step_by(context.max(2) - 1);
    starts.map(move |start| start..(start + context.max(2)).min(n))
}

/// Pieces without a trained token are left out: they would teach nothing.
fn pieces(example: &Example, context: usize) -> Vec<Example> {
    let piece = |range: Range<usize>| {
        let mut trained = example.trained[range.clone()].to_vec();
        // The shared token was a target in the piece before.
        trained[0] = false;
        let place = format!("{} from token {}", example.place, range.start);
        trained.contains(&true).then(|| Example { ids: example.ids[range].to_vec(), trained, place })
    };
    cuts(example.ids.len(), context).filter_map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(n: u32, trained_from: u32) -> Example {
        let trained = (0..n).map(|i| i > 0 && i >= trained_from).collect();
        Example { ids: (0..n).collect(), trained, place: "d:1".into() }
    }

    #[test]
    fn split_keeps_every_trained_token_once() {
        for n in 2..40 {
            for context in 2..12 {
                for from in [0, 3, 17] {
                    let e = example(n, from);
                    let parts = pieces(&e, context);
                    let targets = parts.iter().flat_map(|p| p.ids.iter().zip(&p.trained));
                    let targets: Vec<u32> = targets.filter(|(_, t)| **t).map(|(id, _)| *id).collect();
                    assert_eq!(targets, (from.max(1)..n).collect::<Vec<_>>(), "{n} {context} {from}");
                    assert!(parts.iter().all(|p| p.ids.len() <= context && !p.trained[0]));
                }
            }
        }
    }

    #[test]
    fn the_error_names_the_contexts_that_fit() {
        let examples: Vec<_> = (1..=100).map(|i| example(i + 1, 0)).collect();
        let mut report = Report::measure(&examples, None);
        let e = fit(examples.clone(), 90, LengthPolicy::Error, &mut report).unwrap_err();
        assert_eq!(
            e.to_string(),
            "11 of 100 examples are longer than the context of 90 tokens, first d:1 with 91"
        );
        assert!(e.hint().unwrap().contains("--context 96 fits 95 %, 100 fits 99 %, 101 fits all"));
        assert_eq!(fit(examples.clone(), 90, LengthPolicy::Drop, &mut report).unwrap().len(), 89);
        assert_eq!(report.dropped, 11);
        assert_eq!(fit(examples.clone(), 90, LengthPolicy::Truncate, &mut report).unwrap().len(), 100);
        assert_eq!(report.truncated, 11);
        assert_eq!(fit(examples, 1, LengthPolicy::Drop, &mut report).unwrap_err().code(), "context");
    }

    #[test]
    fn a_truncated_example_without_targets_is_dropped() {
        let examples = vec![example(10, 8), example(3, 0)];
        let mut report = Report::measure(&examples, None);
        assert_eq!(fit(examples, 5, LengthPolicy::Truncate, &mut report).unwrap().len(), 1);
        assert_eq!((report.dropped, report.truncated), (1, 0));
    }
}
