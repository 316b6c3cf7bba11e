//! Everything CI checks, in one command that a developer can run too.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{run, test, tidy};

type Step = fn(&Path) -> Result<bool>;

/// Cheap and telling first. A failed step does not stop the next ones: one run shows everything.
static STEPS: &[(&str, Step)] = &[
    ("format", |root| run::succeeds(run::cargo(root).args(["fmt", "--all", "--check"]))),
    ("tidy", |root| tidy::run(root, tidy::Counts::Compare)),
    ("clippy", |root| {
        let lint = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        run::succeeds(run::cargo(root).args(lint))
    }),
    ("docs", |root| {
        let doc = ["doc", "--no-deps", "--workspace"];
        run::succeeds(run::cargo(root).args(doc).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("test", |root| test::run(root, &[])),
];

pub fn run(root: &Path) -> Result<bool> {
    let mut done: Vec<(&str, bool, Duration)> = Vec::new();
    for (name, step) in STEPS {
        println!("ci: {name}");
        let start = Instant::now();
        let passed = step(root).unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            false
        });
        let took = start.elapsed();
        println!("ci: {name} {} in {:.1} s", verdict(passed), took.as_secs_f64());
        done.push((name, passed, took));
    }
    println!("\nci: summary");
    for (name, passed, took) in &done {
        println!("  {name:<8} {:<6} {:>8.1} s", verdict(*passed), took.as_secs_f64());
    }
    Ok(done.iter().all(|(_, passed, _)| *passed))
}

fn verdict(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}
