//! All tests, with everything they may ask for present, so that none is skipped.
//!
//! Tests find their surroundings in these variables:
//! `PLANISH_MODELS` folder of the fetched model and data; `PLANISH_PYTHON` interpreter that has llama.cpp;
//! `PLANISH_BIN` the release binary; `PLANISH_SHARED` further reference files, optional;
//! `PLANISH_REQUIRE_ALL=1`: what is missing fails the test instead of skipping it.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use crate::{fetch, run};

/// `args` go to `cargo test`.
pub fn run(root: &Path, args: &[&str]) -> Result<bool> {
    let Some(surroundings) = surroundings(root)? else { return Ok(false) };
    let mut test = run::cargo(root);
    test.args(["test", "--workspace", "--features", "planish/faults", "--no-fail-fast"]).args(args);
    run::succeeds(test.envs(surroundings))
}

/// Fetches and builds what tests ask for, and gives the variables that name it; none when the build fails.
pub fn surroundings(root: &Path) -> Result<Option<Vec<(&'static str, OsString)>>> {
    let target = run::target_directory(root)?;
    let cache = target.join("test-cache");
    let python = fetch::engine(&cache.join("venv"))?;
    let models = cache.join("models");
    fetch::models(&models, &python)?;

    // End-to-end tests train a real model: only the optimised binary does that in seconds.
    if !run::succeeds(run::cargo(root).args(["build", "--release", "--package", "planish"]))? {
        return Ok(None);
    }
    let binary = target.join("release").join(format!("planish{}", std::env::consts::EXE_SUFFIX));
    let mut variables = vec![
        ("PLANISH_MODELS", models.into()),
        ("PLANISH_PYTHON", python.into()),
        ("PLANISH_BIN", binary.into()),
        ("PLANISH_REQUIRE_ALL", "1".into()),
    ];
    let shared = root.join("../shared");
    if shared.is_dir() && std::env::var_os("PLANISH_SHARED").is_none() {
        variables.push(("PLANISH_SHARED", shared.into()));
    }
    Ok(Some(variables))
}
