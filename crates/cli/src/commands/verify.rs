//! `planish verify`: would llama.cpp take this file?

use std::path::PathBuf;

use planish_base::{Error, Kind, Result};
use planish_engine::Model;
use serde_json::json;

use crate::Context;
use crate::output::{Out, printable};

/// Check that a model or an adapter is complete, sound, and what llama.cpp loads
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF model or adapter, a Hugging Face or a PEFT directory
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The base of an adapter: names, shapes and hash must fit it
    #[arg(long, value_name = "MODEL")]
    base: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Kind `Check` when a check failed; else when a file is not there or cannot be read.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let base = args.base.as_deref().map(Model::open).transpose()?;
    let report = planish_engine::verify(&args.file, base.as_ref())?;
    let mut out = Out::new();
    if cx.json {
        let check = |c: &planish_engine::Check| json!({"name": c.name, "ok": c.ok, "detail": c.detail});
        let checks: Vec<_> = report.checks.iter().map(check).collect();
        let file = args.file.display().to_string();
        out.json(&json!({"verify": {"file": file, "ok": report.ok(), "checks": checks}}))?;
    } else {
        for c in &report.checks {
            let verdict = if c.ok { "ok" } else { "FAILED" };
            out.line(&format!("{verdict:6}  {:14}  {}", c.name, printable(&c.detail)))?;
        }
    }
    out.flush()?;
    match report.failed().count() {
        0 => Ok(()),
        n => {
            let message = format!("{n} of {} checks failed", report.checks.len());
            Err(Error::new(Kind::Check, "verify", message).in_file(&args.file))
        }
    }
}
