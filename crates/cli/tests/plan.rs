//! The plan is true: what a run is said to need is what it takes, and it ends well in little more.
//!
//! `cargo xtask plan` runs all configurations; by itself the test takes a few of them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test fails and reports
#![cfg(target_os = "linux")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::runs::long;
use common::{Place, Tiny, planish};
use planish_testkit::files::needed;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Tokens an example, and flags.
type Config = (usize, &'static str);

const TINY: &[Config] = &[
    (64, "--batch-size 1 --micro-batch 1"),
    (256, "--batch-size 8 --micro-batch 8"),
    (256, "--batch-size 8 --micro-batch 8 --recompute"),
    (256, "--batch-size 4 --micro-batch 2 --full"),
    (200, "--batch-size 4 --micro-batch 4 --full --recompute"),
    (128, "--batch-size 2 --micro-batch 2 --rank 64"),
];

/// The first are those of the short form.
const SMOLLM2: &[Config] = &[
    (128, "--batch-size 1 --micro-batch 1"),
    (256, "--batch-size 2 --micro-batch 2 --recompute"),
    (512, "--batch-size 1 --micro-batch 1"),
    (512, "--batch-size 1 --micro-batch 1 --recompute"),
    (256, "--batch-size 4 --micro-batch 4"),
    (256, "--batch-size 4 --micro-batch 4 --recompute"),
    (256, "--batch-size 2 --micro-batch 2 --rank 8 --targets q,v"),
    (128, "--batch-size 1 --micro-batch 1 --rank 64 --rslora"),
    (256, "--batch-size 2 --micro-batch 1 --dropout 0.1"),
    (1024, "--batch-size 1 --micro-batch 1 --recompute"),
    (512, "--batch-size 4 --micro-batch 4 --memory 700MB"),
    (128, "--batch-size 1 --micro-batch 1 --full"),
    (256, "--batch-size 1 --micro-batch 1 --full"),
    (256, "--batch-size 2 --micro-batch 2 --full --recompute"),
];

/// Examples of random tokens, all trained but for the first.
fn data(place: &Place, tokens: usize, vocab: u64) -> PathBuf {
    let stream = planish_base::rng::Stream::new(1, planish_base::rng::Purpose::Sample, 0);
    let line = |e: u64| {
        let id = |i: usize| (stream.uniform(e * 4096 + i as u64) * vocab as f64) as u64;
        serde_json::json!({"input_ids": (0..tokens).map(id).collect::<Vec<_>>()}).to_string() + "\n"
    };
    place.write("data.jsonl", (0..8).map(line).collect::<String>())
}

fn arguments(place: &Place, model: &Path, data: &Path, flags: &str) -> Vec<String> {
    let path = |p: &Path| p.display().to_string();
    let out = place.path("run");
    let common = ["--steps", "1", "--eval-split", "1", "--threads", "2", "--json", "--out", &path(&out)];
    // A flag of the configuration stands for that of the same name here.
    let mut given: Vec<String> = flags.split_whitespace().map(str::to_string).collect();
    for pair in common.chunks(2).filter(|p| !flags.contains(p[0])) {
        given.extend(pair.iter().map(|s| (*s).to_string()));
    }
    given.retain(|a| a != "--json");
    given.push("--json".into());
    [vec!["tune".to_string(), path(model), path(data)], given].concat()
}

/// The optimised program where there is one.
fn binary() -> PathBuf {
    std::env::var_os("PLANISH_BIN").map_or_else(|| env!("CARGO_BIN_EXE_planish").into(), PathBuf::from)
}

/// Plans, then runs with the address space that the plan gives. Returns planned and measured bytes.
fn planned_and_measured(place: &Place, model: &Path, (tokens, flags): Config, vocab: u64) -> (u64, u64) {
    let data = data(place, tokens, vocab);
    let arguments = arguments(place, model, &data, flags);
    let dry = Command::new(binary()).args(&arguments).arg("--dry-run").output().unwrap();
    assert!(dry.status.success(), "{flags}: {}", String::from_utf8_lossy(&dry.stderr));
    let plan: Value = serde_json::from_slice(&dry.stdout).unwrap();
    let planned = plan["plan"]["memory"]["total_bytes"].as_u64().unwrap();
    let limit = (planned * 115 / 100 + 256 * MIB) / 1024;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {limit}; exec \"$0\" \"$@\"")]).arg(binary());
    let run = command.args(&arguments).output().unwrap();
    assert!(run.status.success(), "{flags}: in {limit} KiB: {}", String::from_utf8_lossy(&run.stderr));
    let done: Value = serde_json::from_slice(&run.stdout).unwrap();
    std::fs::remove_dir_all(place.path("run")).unwrap();
    (done["tune"]["planned_bytes"].as_u64().unwrap(), done["tune"]["peak_bytes"].as_u64().unwrap())
}

fn all(place: &Place, model: &Path, configs: &[Config], vocab: u64) {
    let mut wrong = Vec::new();
    for &config in configs {
        let (planned, measured) = planned_and_measured(place, model, config, vocab);
        let apart = planned.abs_diff(measured);
        let line = format!(
            "{} tokens {}: planned {:.1} MiB, measured {:.1} MiB ({:+.1} %)",
            config.0,
            config.1,
            planned as f64 / MIB as f64,
            measured as f64 / MIB as f64,
            100.0 * (planned as f64 / measured as f64 - 1.0)
        );
        eprintln!("{line}");
        if apart > 32 * MIB && apart * 10 > measured {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "more than 32 MiB and 10 % apart:\n{}", wrong.join("\n"));
}

#[test]
fn of_tiny_models() {
    let place = Place::new();
    let model = place.tiny(&Tiny::default());
    all(&place, &model, TINY, 300);
}

#[test]
fn of_smollm2() {
    let Some(model) = needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf") else { return };
    let configs = if long("PLANISH_PLAN_LONG").is_some() { SMOLLM2 } else { &SMOLLM2[..2] };
    all(&Place::new(), &model, configs, 49152);
}

#[test]
fn what_does_not_fit_is_refused_with_settings_that_do() {
    let place = Place::new();
    let model = place.tiny(&Tiny::default());
    let data = data(&place, 256, 300);
    let plan = |flags: &str| {
        let arguments = arguments(&place, &model, &data, flags);
        planish().args(&arguments).arg("--dry-run").output().unwrap()
    };
    let total = |flags: &str| {
        let plan: Value = serde_json::from_slice(&plan(flags).stdout).unwrap();
        (plan["plan"]["memory"]["total_bytes"].as_u64().unwrap(), plan["plan"].clone())
    };
    let (large, _) = total("--batch-size 8 --micro-batch 8");
    let (small, _) = total("--batch-size 8 --micro-batch 2");
    assert!(small < large);
    // Chosen so that it fits, and said.
    let (chosen, plan_of) = total(&format!("--batch-size 8 --micro-batch 8 --memory {}", small + MIB));
    assert!(chosen <= small + MIB && plan_of["micro_batch"].as_u64() <= Some(2), "{plan_of}");
    // Without --memory nothing is chosen silently: the system has less than that.
    let limited = |flags: &str, kib: u64| {
        let arguments = arguments(&place, &model, &data, flags);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_planish")]);
        command.args(&arguments).arg("--dry-run").output().unwrap()
    };
    let impossible = plan("--batch-size 8 --micro-batch 8 --memory 1MB");
    assert_eq!(impossible.status.code(), Some(4));
    let stderr = String::from_utf8_lossy(&impossible.stderr).into_owned();
    assert!(stderr.contains("--memory allows 1 MB") && stderr.contains("--context"), "{stderr}");
    let tight = (small / 1024) + 160 * 1024;
    let refused = limited("--batch-size 512 --micro-batch 512", tight);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("MB are free") && stderr.contains("it fits with --micro-batch"), "{stderr}");
}

#[test]
fn generating_is_refused_by_its_plan_too() {
    let place = Place::new();
    let model = place.tiny(&Tiny { context: 1 << 22, ..Tiny::default() }).display().to_string();
    let refused = |context: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 400000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_planish")]);
        let output = command.args(["generate", &model, "-p", "hi", "--context", context]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        stderr
    };
    // Two layers of 16 columns, keys and values in F32: 256 bytes a token.
    let stderr = refused("1000000");
    assert!(stderr.contains("a context of 1000000 tokens needs 256 MB more memory"), "{stderr}");
    // Sine and cosine of 8 angles, twice: 128 bytes a token.
    let stderr = refused("4000000");
    assert!(stderr.contains("a context of 4000000 tokens needs 512 MB more memory"), "{stderr}");
}
