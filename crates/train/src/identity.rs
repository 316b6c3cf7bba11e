//! What a run's numbers depend on, and whether two of them are the same.

use planish_base::{Error, Result};
use planish_compute::NUMERICS_VERSION;
use planish_engine::{Engine, Model};
use planish_store::fs;
use planish_text::Example;
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::data::Data;

/// Hashes (SHA-256, hexadecimal) and versions: when one differs, a resumed run would be another run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The base model's files.
    pub base: String,
    /// Its vocabulary; none without tokenizer.
    pub tokenizer: Option<String>,
    /// Training examples as tokens and masks, in order.
    pub data: String,
    /// Held-out examples.
    pub eval_data: String,
    /// Trained values.
    pub trained: u64,
    /// Version of the arithmetic.
    pub numerics_version: u32,
    /// Arithmetic of products.
    pub precision: String,
    /// Instruction set path.
    pub isa: String,
}

impl Identity {
    pub(crate) fn new(engine: &Engine, data: &Data, trained: u64) -> Identity {
        Identity {
            base: engine.model.sha256().to_string(),
            tokenizer: vocabulary(&engine.model),
            data: examples(&data.train_examples()),
            eval_data: examples(&data.eval_examples()),
            trained,
            numerics_version: NUMERICS_VERSION,
            precision: engine.precision().name().into(),
            isa: engine.backend.isa().name().to_string(),
        }
    }
}

fn vocabulary(model: &Model) -> Option<String> {
    let tokenizer = model.tokenizer.as_ref()?;
    let mut bytes = Vec::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        bytes.extend(tokenizer.token_text(id).unwrap_or_default().as_bytes());
        bytes.push(0);
    }
    Some(fs::sha256(&bytes))
}

/// The hash of the examples' hashes.
fn examples(examples: &[&Example]) -> String {
    let one = |e: &&Example| {
        let bytes: Vec<u8> = e
            .ids
            .iter()
            .zip(&e.trained)
            .flat_map(|(id, t)| id.to_le_bytes().into_iter().chain([u8::from(*t)]))
            .collect();
        fs::sha256(&bytes)
    };
    fs::sha256(examples.iter().map(one).collect::<String>().as_bytes())
}

/// Settings that change where and when a run writes and looks, not what it computes.
const FREE: &[&str] = &[
    "base",
    "data",
    "eval_data",
    "cache",
    "threads",
    "memory",
    "eval_every",
    "early_stop",
    "on_nonfinite",
    "save_every",
    "keep",
    "grad_every",
    "drift_every",
    "sample_every",
    "sample_prompt",
    "sample_tokens",
    "sample_temperature",
];

/// What decides the shape of the state: no state of one fits the other.
const FIXED: &[&str] = &[
    "full",
    "freeze",
    "train",
    "rank",
    "targets",
    "layers",
    "rank_pattern",
    "dora",
    "init_lora",
    "optimizer",
    "ema",
    "trained",
];

/// What decides the part of the base that pairs begin as, where they do: a run that goes on computes it again.
const FIXED_BY_PISSA: &[&str] = &["alpha", "alpha_pattern", "rslora", "seed", "base"];

fn is_fixed(name: &str, now: &RunConfig) -> bool {
    FIXED.contains(&name) || (now.init_lora == "pissa" && FIXED_BY_PISSA.contains(&name))
}

/// One thing that differs between a checkpoint and the run that wants to go on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// A setting, or a field of [`Identity`].
    pub name: String,
    /// In the checkpoint.
    pub before: String,
    /// Now.
    pub now: String,
}

/// All differences that matter, settings first.
pub fn differences(before: (&RunConfig, &Identity), now: (&RunConfig, &Identity)) -> Vec<Difference> {
    let mut found = compare(&bound(before.0), &bound(now.0));
    found.extend(compare(&fields(before.1), &fields(now.1)));
    found
}

/// The settings that decide what a run computes. (Its data are paths among the settings and hashes in the identity.)
fn bound(config: &RunConfig) -> Fields {
    fields(config).into_iter().filter(|(name, _)| !FREE.contains(&name.as_str())).collect()
}

type Fields = serde_json::Map<String, serde_json::Value>;

fn fields<T: Serialize>(v: &T) -> Fields {
    match serde_json::to_value(v) {
        Ok(serde_json::Value::Object(map)) => map,
        _ => Fields::new(),
    }
}

fn compare(before: &Fields, now: &Fields) -> Vec<Difference> {
    let text = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_string);
    let difference = |(name, b): (&String, &serde_json::Value)| {
        let n = now.get(name).filter(|n| *n != b)?;
        Some(Difference { name: name.clone(), before: text(b), now: text(n) })
    };
    before.iter().filter_map(difference).collect()
}

/// Refuses names that `--allow` cannot take.
///
/// # Errors
/// Kind `Usage`, with the names that it can.
pub fn check_names(allowed: &[String]) -> Result<()> {
    let mut known = bound(&RunConfig::default());
    known.extend(fields(&Identity::default()));
    known.retain(|name, _| !FIXED.contains(&name.as_str()));
    match allowed.iter().find(|name| !known.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let names = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(Error::usage("allow", format!("`{name}` cannot be allowed"))
                .with_hint(format!("one of {names}")))
        }
    }
}

/// Refuses differences that are not in `allowed`.
///
/// # Errors
/// `resume`, with the list and how to allow what may differ.
pub fn check(differences: &[Difference], allowed: &[String], now: &RunConfig) -> Result<()> {
    let fixed = |d: &&Difference| is_fixed(&d.name, now);
    let refused: Vec<&Difference> =
        differences.iter().filter(|d| fixed(d) || !allowed.contains(&d.name)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let line = |d: &&Difference| format!("{} was {}, is {}", d.name, shortened(&d.before), shortened(&d.now));
    let list: Vec<String> = refused.iter().map(line).collect();
    let may: Vec<String> =
        refused.iter().filter(|d| !fixed(d)).map(|d| format!("--allow {}", d.name)).collect();
    let hint = match refused.iter().any(fixed) {
        true => "start a new run; --init-adapter begins one from a trained adapter".to_string(),
        false => format!("undo the change, or accept that the run is another one: {}", may.join(" ")),
    };
    let message = format!("the run cannot go on as the same run: {}", list.join("; "));
    Err(Error::usage("resume", message).with_hint(hint))
}

/// The first digits of a hash, anything else as it is.
fn shortened(value: &str) -> String {
    match value.len() {
        64 => format!("{}..", &value.chars().take(12).collect::<String>()),
        _ => value.to_string(),
    }
}
