//! Executed instructions of small pieces of work on one thread, counted by valgrind: the same for the same binary, however
//! busy the machine is. bench/instructions.txt is the record; what costs more than it did shows here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// Examples of planish-engine on a random llama, and their arguments: 8 tokens read and 8 decoded; training passes of 64
/// tokens with an adapter and with every weight.
const WORK: [(&str, &[&str]); 2] =
    [("decode", &["-", "8", "8", "1", "1"]), ("recompute", &["-", "64", "1", "1", "1"])];

/// A change of this share is none: libraries of the system differ.
const SLACK: f64 = 0.02;

/// Whether the counts become the record or are compared with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Compare,
    Bless,
}

/// Counts, prints, and says whether no count is above the record.
pub fn run(root: &Path, record: Record) -> Result<bool> {
    let build = ["build", "--release", "--package", "planish-engine", "--examples"];
    if !run::succeeds(run::cargo(root).args(build))? {
        return Ok(false);
    }
    let examples = run::target_directory(root)?.join("release/examples");
    let path = root.join("bench/instructions.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut lines, mut ok) = (String::new(), true);
    for (name, args) in WORK {
        let count = count(&examples.join(name), args)?;
        let before = text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<f64>().ok());
        let change = before.map_or(0.0, |b| count as f64 / b - 1.0);
        println!("{name} {}: {count} instructions, {:+.2} %", args.join(" "), 100.0 * change);
        lines += &format!("{name} {count}\n");
        ok &= before.is_some() && change <= SLACK;
    }
    if record == Record::Bless {
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(true);
    }
    if !ok {
        println!("more than {} says, or not in it: cargo xtask instructions --bless", path.display());
    }
    Ok(ok)
}

fn count(program: &Path, args: &[&str]) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).args(args);
    let out = command.output().context("cannot start valgrind, which counts the instructions")?;
    let text = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        bail!("{}: {}", program.display(), text.trim().lines().last().unwrap_or("no message"));
    }
    let count = text.lines().find_map(|l| l.split_once("Collected :")?.1.trim().parse().ok());
    count.with_context(|| format!("valgrind names no number of instructions:\n{text}"))
}
