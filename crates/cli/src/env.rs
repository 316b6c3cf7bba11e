//! The environment: defaults of a few flags, for programs that start runs. Read here and nowhere else.
#![allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]

use std::path::PathBuf;

use planish_base::{Error, Result};

/// `TAO_RUN_DIR`: the run directory, default of `--out`.
pub fn run_dir() -> Option<PathBuf> {
    std::env::var_os("TAO_RUN_DIR").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// `TOY_RUN_ID`: the name of the run, default of `--run-id`.
pub fn run_id() -> Option<String> {
    std::env::var("TOY_RUN_ID").ok().filter(|v| !v.is_empty())
}

/// `CHECKPOINT_EVERY`: steps between checkpoints, default of `--save-every`.
///
/// # Errors
/// Kind `Usage` for what is no number.
pub fn checkpoint_every() -> Result<Option<usize>> {
    let Some(text) = std::env::var("CHECKPOINT_EVERY").ok().filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let bad =
        |_| Error::usage("environment", format!("CHECKPOINT_EVERY is {text:?}, expected a number of steps"));
    text.parse().map(Some).map_err(bad)
}

/// `PLANISH_FAULT`: which call that changes the disk fails, and how; `0:io` only counts. For tests of whole runs.
#[cfg(all(unix, feature = "faults"))]
pub fn fault() -> Option<String> {
    std::env::var("PLANISH_FAULT").ok().filter(|v| !v.is_empty())
}
