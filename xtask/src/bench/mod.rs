//! planish beside its peers, on the machine at hand.
//!
//! A row of [`rows::ROWS`] is one piece of work for all of them. A round is one process of planish and one of each peer,
//! one after the other, which makes a pair of planish with each; what is kept is the median over the rounds.

mod machine;
mod peers;
mod report;
mod rounds;
mod rows;
mod surroundings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run;
use machine::Machine;
use rounds::{Compared, Measured, Side};
use rows::Row;
use surroundings::Surroundings;

/// Rounds unless more are asked for.
const PAIRS: usize = 5;

/// What is asked for.
struct Options {
    pairs: usize,
    /// PyTorch is measured compiled too.
    compiled: bool,
    out: Option<PathBuf>,
    /// All run at a real-time priority, so that other processes do not disturb them.
    rt: bool,
    threads: usize,
    rows: Vec<&'static Row>,
}

/// All rows so far.
struct Results {
    machine: Machine,
    settings: String,
    compared: Vec<Compared>,
    /// Row or peer, and why it was not measured.
    skipped: Vec<(String, String)>,
    versions: BTreeMap<String, String>,
}

impl Results {
    fn skip(&mut self, what: String, why: String) {
        println!("{what}: {why}");
        self.skipped.push((what, why));
    }

    fn write(&self, out: &Path) -> Result<()> {
        std::fs::write(out, report::text(self)).with_context(|| format!("cannot write {}", out.display()))
    }
}

/// `args`: `[--pairs N] [--out FILE] [--threads N] [--rt] [--compiled] [ROWS...]`.
pub fn run(root: &Path, args: &[&str]) -> Result<bool> {
    let options = options(args)?;
    if !run::succeeds(run::cargo(root).args(["build", "--release", "--package", "planish"]))? {
        return Ok(false);
    }
    let surroundings = Surroundings::find(root, options.threads, options.compiled)?;
    let mut results = Results {
        machine: Machine::look(root)?,
        settings: options.settings(),
        compared: Vec::new(),
        skipped: Vec::new(),
        versions: BTreeMap::new(),
    };
    let date = &results.machine.date;
    let out = options.out.clone().unwrap_or_else(|| root.join(format!("bench/results/{date}.md")));
    let mut ok = true;
    for row in &options.rows {
        ok &= row_done(row, &surroundings, &options, &mut results);
        // After each row, so that a run that is stopped leaves what it has.
        results.write(&out)?;
    }
    println!("written: {}", out.display());
    Ok(ok)
}

/// Measures a row beside each of its peers; false when something failed.
fn row_done(row: &'static Row, s: &Surroundings, options: &Options, results: &mut Results) -> bool {
    let ready = match row.ready(s) {
        Ok(ready) => ready,
        Err(why) => {
            results.skip(row.id.to_owned(), why);
            return true;
        }
    };
    for (peer, why) in ready.missing {
        results.skip(format!("{}, {peer}", row.id), why);
    }
    let mut sides = vec![Side::new("planish", ready.ours)];
    sides.extend(ready.peers.into_iter().map(|(peer, line)| Side::new(peer, line)));
    rounds::run(options.pairs, &mut sides, &mut |side| {
        let (measured, versions) = process(row, &side.line, s, options)?;
        results.versions.extend(versions);
        Ok(measured)
    });
    let mut ok = true;
    for (peer, compared) in rounds::compare(row, sides) {
        match compared {
            Ok(compared) => {
                report::lines(&compared).iter().for_each(|line| println!("{line}"));
                results.compared.push(compared);
            }
            Err(e) => {
                results.skip(format!("{}, {peer}", row.id), format!("failed: {e:#}"));
                ok = false;
            }
        }
    }
    ok
}

impl Options {
    fn settings(&self) -> String {
        let rt = if self.rt { ", all with `chrt -f 5`" } else { "" };
        format!("{} threads, {} pairs{rt}", self.threads, self.pairs)
    }
}

fn options(args: &[&str]) -> Result<Options> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut options =
        Options { pairs: PAIRS, compiled: false, out: None, rt: false, threads, rows: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match *arg {
            "--pairs" => options.pairs = value()?.parse().context("--pairs needs a number")?,
            "--threads" => options.threads = value()?.parse().context("--threads needs a number")?,
            "--out" => options.out = Some(PathBuf::from(value()?)),
            "--rt" => options.rt = true,
            "--compiled" => options.compiled = true,
            id => options.rows.push(rows::of(id)?),
        }
    }
    if options.pairs == 0 || options.threads == 0 {
        bail!("--pairs and --threads are at least 1");
    }
    if options.rt && !run::succeeds(Command::new("chrt").args(["-f", "5", "true"])).unwrap_or(false) {
        bail!("--rt: `chrt -f 5` does not work here; it needs the right to set a real-time priority");
    }
    if options.rows.is_empty() {
        options.rows = rows::ROWS.iter().collect();
    }
    Ok(options)
}

/// Runs a command line and reads what it measured.
fn process(
    row: &Row,
    line: &[String],
    surroundings: &Surroundings,
    options: &Options,
) -> Result<(Measured, Versions)> {
    let words: Vec<String> = line.iter().map(|word| surroundings.resolve(word)).collect();
    let (program, args) = words.split_first().context("an empty command line")?;
    let mut command = match options.rt {
        true => {
            let mut command = Command::new("chrt");
            command.args(["-f", "5", program]);
            command
        }
        false => Command::new(program),
    };
    let threads = options.threads.to_string();
    command.args(args).envs([("OMP_NUM_THREADS", threads.as_str()), ("HF_HUB_OFFLINE", "1")]);
    command.env("CUDA_VISIBLE_DEVICES", "").env("TOKENIZERS_PARALLELISM", "false");
    let out = command.output().with_context(|| format!("cannot start {program}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        let errors = String::from_utf8_lossy(&out.stderr);
        bail!("`{}`: {}", line.join(" "), errors.trim().lines().last().unwrap_or("no message"));
    }
    let objects: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    Ok(parse(row, &objects))
}

/// Version by name of a program or package.
type Versions = BTreeMap<String, String>;

/// planish prints an object a line, a peer one object.
fn parse(row: &Row, objects: &[Value]) -> (Measured, Versions) {
    let mut out = Measured { values: BTreeMap::new(), peak_mb: 0.0 };
    let mut versions = Versions::new();
    for object in objects {
        out.values.extend(row.figures(object));
        let own = object["memory"]["peak_bytes"].as_f64().map(|b| b / 1e6);
        out.peak_mb = out.peak_mb.max(own.or(object["peak_rss_mb"].as_f64()).unwrap_or(0.0));
        for (name, version) in object["versions"].as_object().into_iter().flatten() {
            versions.insert(name.clone(), version.as_str().unwrap_or_default().to_owned());
        }
        // Programs of one library name it so: `burn 0.22.1 flex`.
        if let Some((name, version)) = object["peer"].as_str().and_then(|peer| peer.split_once(' ')) {
            versions.insert(name.to_owned(), version.to_owned());
        }
    }
    (out, versions)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_sides_are_read_alike() {
        let row = rows::of("lora-f32-b1").unwrap();
        let ours = [
            json!({"train": {"tokens_per_second": {"median": 120.5, "min": 1, "max": 2}}}),
            json!({"memory": {"peak_bytes": 2_000_000}}),
        ];
        let peer = [json!({"tokens_per_s": 100.0, "peak_rss_mb": 3.5, "versions": {"torch": "2.0"}})];
        let ((ours, _), (peer, versions)) = (parse(row, &ours), parse(row, &peer));
        assert_eq!((ours.peak_mb, peer.peak_mb), (2.0, 3.5));
        assert_eq!(versions["torch"], "2.0");
        assert_eq!((ours.values[""], peer.values[""]), (120.5, 100.0));
        let program = [json!({"tokens_per_s": 5, "peer": "burn 0.22.1 flex"})];
        assert_eq!(parse(row, &program).1["burn"], "0.22.1 flex");
    }

    #[test]
    fn products_are_named_by_shape_and_order() {
        let row = rows::of("gemm").unwrap();
        let ours = json!({"matrix": {"m": 1, "k": 2, "n": 3, "order": "NT", "gflops": {"median": 60.0}}});
        let peer = json!({"gflops": {"1 x 2 x 3 NT": 50.0}});
        let of = |object: Value| parse(row, &[object]).0.values["1 x 2 x 3 NT"];
        assert_eq!((of(ours), of(peer)), (60.0, 50.0));
    }

    #[test]
    fn options_are_checked() {
        let all = options(&[]).unwrap();
        assert_eq!((all.pairs, all.rows.len()), (PAIRS, rows::ROWS.len()));
        let some = options(&["--pairs", "2", "gemm", "--out", "x.md"]).unwrap();
        assert_eq!((some.pairs, some.rows[0].id, some.out), (2, "gemm", Some(PathBuf::from("x.md"))));
        assert!(options(&["--compiled", "gemm"]).unwrap().compiled && !some.compiled);
        assert!(options(&["--pairs"]).is_err() && options(&["--pairs", "0"]).is_err());
        assert!(options(&["nonsense"]).is_err());
    }
}
