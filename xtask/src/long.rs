//! The long forms of tests that run in a short form every time: they print the figures that the README quotes.

use std::path::Path;

use anyhow::Result;

use crate::{run, test};

/// Kills and failing disks: `kills` kills at random times, every call that changes the disk, every state that a power
/// loss may leave.
pub fn crash(root: &Path, kills: &str, seed: &str) -> Result<bool> {
    let store = ["test", "--package", "planish-store", "--test", "faults", "--test", "power_loss"];
    let runs = ["test", "--package", "planish", "--features", "faults", "--test", "crash"];
    let mut ok = run::succeeds(run::cargo(root).args(store).args(["--", "--nocapture"]))?;
    let mut command = run::cargo(root);
    command.args(runs).args(["--", "--nocapture", "--test-threads", "1"]);
    ok &= run::succeeds(command.env("PLANISH_KILLS", kills).env("PLANISH_SEED", seed))?;
    Ok(ok)
}

/// One hash of the last weights over threads and resume points.
pub fn bits(root: &Path) -> Result<bool> {
    let mut command = run::cargo(root);
    command.args(["test", "--package", "planish", "--test", "bits", "--", "--nocapture"]);
    run::succeeds(command.env("PLANISH_BITS_LONG", "1"))
}

/// Planned against measured memory, in little more than the plan.
pub fn plan(root: &Path) -> Result<bool> {
    let Some(surroundings) = test::surroundings(root)? else { return Ok(false) };
    let mut command = run::cargo(root);
    command.args([
        "test",
        "--package",
        "planish",
        "--test",
        "plan",
        "--",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    run::succeeds(command.envs(surroundings).env("PLANISH_PLAN_LONG", "1"))
}
