//! Patterns over the names of tensors: which of them are trained, and how fast.

use std::collections::{BTreeMap, BTreeSet};

use planish_base::{Error, Result};
use planish_engine::Model;
use planish_model::Trainable;

use crate::config::RunConfig;
use crate::optim::Target;

/// Names in the hint of a pattern that no tensor has.
const NEAR: usize = 3;

/// Which tensors of the model a run of all weights trains: those that a pattern of `train` matches, or all without one,
/// but for those that a pattern of `freeze` matches.
///
/// # Errors
/// Kind `Usage` for a pattern that matches no tensor, and when nothing is left to train.
pub(crate) fn trainable(model: &Model, config: &RunConfig) -> Result<Trainable> {
    let names: Vec<&str> = names(model);
    check("freeze", &config.freeze, &names)?;
    check("train", &config.train, &names)?;
    if config.freeze.is_empty() && config.train.is_empty() {
        return Ok(Trainable::Everything);
    }
    let any = |patterns: &[String], name: &str| patterns.iter().any(|p| matches(p, name));
    let wanted = |name: &str| config.train.is_empty() || any(&config.train, name);
    let chosen: BTreeSet<String> = names
        .into_iter()
        .filter(|name| wanted(name) && !any(&config.freeze, name))
        .map(str::to_string)
        .collect();
    match chosen.is_empty() {
        true => Err(Error::usage("setting", "freeze and train leave no tensor to train")
            .with_hint("what both match stays frozen")),
        false => Ok(Trainable::Matching(chosen)),
    }
}

/// Multiplies the rates of the tensors that patterns match with their factors.
///
/// # Errors
/// Kind `Usage` for a pattern that matches no trained tensor.
pub(crate) fn scale_rates(targets: &mut [Target], groups: &BTreeMap<String, f64>) -> Result<()> {
    let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
    check("lr-groups", &groups.keys().cloned().collect::<Vec<_>>(), &names)?;
    for t in targets {
        let factors = groups.iter().filter(|(pattern, _)| matches(pattern, &t.name)).map(|(_, x)| *x);
        t.rate *= factors.product::<f64>() as f32;
    }
    Ok(())
}

/// The names of a model's tensors that can be trained.
fn names(model: &Model) -> Vec<&str> {
    let kept = |name: &str| model.arch.is_constant(name) || model.spec.is_kept(name);
    model.weights.entries.keys().map(String::as_str).filter(|name| !kept(name)).collect()
}

/// Refuses a pattern that matches none of `names`.
///
/// # Errors
/// Kind `Usage`, with the names that are most like it.
pub(crate) fn check(setting: &str, patterns: &[String], names: &[&str]) -> Result<()> {
    let Some(pattern) = patterns.iter().find(|p| !names.iter().any(|name| matches(p, name))) else {
        return Ok(());
    };
    let mut near = names.to_vec();
    near.sort_by_key(|name| distance(pattern, name));
    near.truncate(NEAR);
    let message = format!("{setting} is `{pattern}`, which is the name of no tensor");
    Err(Error::usage("setting", message)
        .with_hint(format!("near it are {}; `*` stands for any characters", near.join(", "))))
}

/// Whether `name` is `pattern`, in which each `*` stands for any characters, or none.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        // The first place leaves most for the parts that follow.
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

/// Characters to insert, remove or replace to turn one text into the other (Levenshtein, 1966).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, want) in [
            ("token_embd.weight", "token_embd.weight", true),
            ("token_embd", "token_embd.weight", false),
            ("token_embd.*", "token_embd.weight", true),
            ("*norm*", "blk.0.attn_norm.weight", true),
            ("*norm*", "output_norm.weight", true),
            ("*norm", "output_norm.weight", false),
            ("blk.1.*", "blk.11.attn_q.weight", false),
            ("blk.*.attn_*.weight", "blk.11.attn_q.weight", true),
            ("blk.*.attn_*.bias", "blk.11.attn_q.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab", "xabab", true),
            ("*ab*ab", "xab", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!((distance("", "abc"), distance("abc", ""), distance("abc", "abc")), (3, 3, 0));
    }

    #[test]
    fn the_hint_names_what_is_near() {
        let names = ["blk.0.attn_q.weight", "blk.0.ffn_up.weight", "output_norm.weight", "token_embd.weight"];
        let error = check("freeze", &["token_emb.weight".into()], &names).unwrap_err();
        assert!(error.to_string().contains("freeze is `token_emb.weight`"), "{error}");
        assert!(error.hint().unwrap().starts_with("near it are token_embd.weight, "), "{error:?}");
        assert!(check("freeze", &["*_norm.*".into(), "token*".into()], &names).is_ok());
    }
}
