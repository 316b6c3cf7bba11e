//! `cargo xtask <verb>`: what developers and CI run. Never part of the shipped binary.
//!
//! One module a verb; [`tidy`] holds the rules of the house that the compiler cannot check.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a developer's tool: it reads the tree, starts processes and prints"
)]

mod bench;
mod ci;
mod fetch;
mod instructions;
mod long;
mod neon;
mod run;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <verb>

  ci                 everything CI checks: format, clippy, tidy, test, docs
  test [ARGS...]     fetch what the tests need, build the release binary, run all tests;
                     ARGS go to `cargo test`
  tidy [--bless]     the rules of the house; --bless writes the unsafe counts into ARCHITECTURE.md
  crash [KILLS [SEED]]  the long form of the crash tests: 1000 kills at random times, all failpoints
  bits               one hash of the weights over threads and resume points
  plan               planned against measured memory on 20 configurations
  bench [--pairs N] [--out FILE] [--threads N] [--rt] [--compiled] [ROWS...]
                     planish beside the peers that are installed; bench/README.md says how
  instructions [--bless]  executed instructions of decoding and training a small model, against the record
  neon               the kernels' tests compiled for AArch64 and run under qemu, where those are installed
  fetch-models DIR   only the models and data the tests read";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// `Ok(false)`: the verb ran and found something wrong, and has said what.
fn dispatch(args: &[String]) -> Result<bool> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["ci"] => ci::run(&root()),
        ["test", rest @ ..] => test::run(&root(), rest),
        ["tidy"] => tidy::run(&root(), tidy::Counts::Compare),
        ["tidy", "--bless"] => tidy::run(&root(), tidy::Counts::Bless),
        ["crash"] => long::crash(&root(), "1000", "1"),
        ["crash", kills] => long::crash(&root(), kills, "1"),
        ["crash", kills, seed] => long::crash(&root(), kills, seed),
        ["bits"] => long::bits(&root()),
        ["plan"] => long::plan(&root()),
        ["bench", rest @ ..] => bench::run(&root(), rest),
        ["instructions"] => instructions::run(&root(), instructions::Record::Compare),
        ["instructions", "--bless"] => instructions::run(&root(), instructions::Record::Bless),
        ["neon"] => neon::run(&root()),
        ["fetch-models", dir] => {
            fetch::models(Path::new(dir), Path::new("python3"))?;
            Ok(true)
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        [] => bail!("no verb\n{USAGE}"),
        other => bail!("cannot do '{}'\n{USAGE}", other.join(" ")),
    }
}

/// The workspace this xtask was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}
