//! The whole way on a real model: chats made from gsm8k, one command, and the result in llama.cpp.
//!
//! Needs PLANISH_MODELS (the GGUF and gsm8k), PLANISH_BIN (a release build) and PLANISH_PYTHON (llama.cpp); all three
//! come with `cargo xtask test`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use planish_store::fs::sha256;
use planish_testkit::files::needed;
use planish_text::{Dataset, Example, LoadOptions, load, split};
use planish_train::{Order, RunConfig};
use serde_json::{Value, json};

struct Setup {
    bin: PathBuf,
    python: PathBuf,
    model: PathBuf,
    requests: PathBuf,
    golden: PathBuf,
}

fn setup() -> Option<Setup> {
    Some(Setup {
        bin: needed("PLANISH_BIN", "")?,
        python: needed("PLANISH_PYTHON", "")?,
        model: needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf")?,
        requests: needed("PLANISH_MODELS", "gsm8k.jsonl")?,
        golden: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden"),
    })
}

fn run(program: &Path, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{} {args:?}: {}\n{stdout}\n{stderr}", program.display(), out.status);
    stdout.into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The trained answers must be worth at least this share of the held-out loss.
const LEAST_FALL: f64 = 0.15;

#[test]
fn tune_smollm2_and_run_it_in_llama_cpp() {
    let Some(s) = setup() else { return };
    let dir = tempfile::tempdir().unwrap();
    let chats = dir.path().join("chats.jsonl");
    let make = s.golden.join("tune/make_chats.py");
    run(&s.python, &[text(&make), text(&s.requests), "--out", text(&chats)]);
    let golden: Value =
        serde_json::from_slice(&std::fs::read(s.golden.join("tune/peft.json")).unwrap()).unwrap();
    let data = same_data_as_peft(&s, &chats, &golden);

    let out = dir.path().join("run");
    let tuned = run(
        &s.bin,
        &[
            "tune",
            text(&s.model),
            text(&chats),
            "--steps",
            "40",
            "--precision",
            "f32",
            "--out",
            text(&out),
            "--json",
        ],
    );
    let tuned: Value = serde_json::from_str(tuned.lines().last().unwrap()).unwrap();
    let tuned = &tuned["tune"];
    check_loss(tuned, &golden);
    check_memory(tuned);
    check_run_directory(&out);

    let adapter = out.join("weights/latest");
    run(&s.bin, &["verify", text(&adapter), "--base", text(&s.model)]);
    let prompts: Vec<&[u32]> = data.examples[..5].iter().map(|e| &e.ids[..48]).collect();
    for (kind, mean, max) in [("f16", 0.01, 0.1), ("q8_0", 0.15, f64::INFINITY)] {
        let merged = dir.path().join(format!("{kind}.gguf"));
        run(&s.bin, &["merge", text(&s.model), text(&adapter), text(&merged), "--type", kind]);
        run(&s.bin, &["verify", text(&merged)]);
        compare(&s, dir.path(), &merged, None, &prompts, mean, max);
    }
    compare(&s, dir.path(), &s.model, Some(&adapter), &prompts, 0.15, f64::INFINITY);
}

/// The golden run of PEFT used these very tokens in this very order.
fn same_data_as_peft(s: &Setup, chats: &Path, golden: &Value) -> Dataset {
    let model = planish_engine::Model::open(&s.model).unwrap();
    let options = LoadOptions { context: model.spec.context, ..LoadOptions::default() };
    let data =
        load(&[chats.to_path_buf()], model.tokenizer.as_ref(), model.template.as_ref(), &options).unwrap();
    let config = RunConfig::default();
    let n = data.examples.len();
    assert!(n >= 200);
    let (train, eval) = split(config.seed, n, config.eval_split.count(n));
    let order = Order { seed: config.seed, examples: train.len(), batch_size: config.batch_size };
    let labelled = |i: &usize| {
        let Example { ids, trained, .. } = &data.examples[*i];
        let labels = ids.iter().zip(trained).map(|(id, t)| if *t { i64::from(*id) } else { -100 });
        json!({"input_ids": ids, "labels": labels.collect::<Vec<_>>()})
    };
    let parts = [
        ("train", Value::from(train.iter().map(labelled).collect::<Vec<_>>())),
        ("eval", eval.iter().map(labelled).collect()),
        ("steps", (0..40).map(|step| Value::from(order.step(step))).collect()),
    ];
    for (name, value) in parts {
        let hash = sha256(value.to_string().as_bytes());
        assert_eq!(golden["sha256"][name], hash, "{name}: golden/tune/peft.json was made from other data");
    }
    data
}

fn check_loss(tuned: &Value, golden: &Value) {
    let number = |v: &Value| v.as_f64().unwrap();
    let (before, after) = (number(&tuned["eval"]["before"]["loss"]), number(&tuned["eval"]["after"]["loss"]));
    let (peft_before, peft_after) = (number(&golden["eval_loss_before"]), number(&golden["eval_loss_after"]));
    eprintln!("held-out loss {before:.5} -> {after:.5}; PEFT {peft_before:.5} -> {peft_after:.5}");
    assert!(after <= before * (1.0 - LEAST_FALL));
    assert!((before / peft_before - 1.0).abs() <= 1e-4);
    assert!((after / peft_after - 1.0).abs() <= 0.02);
}

fn check_memory(tuned: &Value) {
    let bytes = |name: &str| tuned[name].as_f64().unwrap();
    let (peak, planned) = (bytes("peak_bytes"), bytes("planned_bytes"));
    eprintln!("peak memory {:.0} MB, planned {:.0} MB", peak / 1e6, planned / 1e6);
    assert!((peak / planned - 1.0).abs() <= 0.15);
}

fn check_run_directory(out: &Path) {
    let files =
        ["config.toml", "events.jsonl", "flow.json", "Modelfile", "weights/step_40.gguf", "weights/latest"];
    let peft = ["peft/adapter_config.json", "peft/adapter_model.safetensors"];
    for file in files.iter().chain(&peft) {
        assert!(out.join(file).exists(), "{file}");
    }
    let events = std::fs::read_to_string(out.join("events.jsonl")).unwrap();
    let mut kinds = BTreeMap::new();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        *kinds.entry(event["kind"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    let expected =
        [("checkpoint", 10), ("eval", 2), ("run_end", 1), ("run_start", 1), ("sample", 2), ("step", 40)];
    assert_eq!(kinds, expected.map(|(k, n)| (k.to_owned(), n)).into());
}

/// The top 50 log-probabilities of llama.cpp against ours, at the last 16 positions of every prompt.
fn compare(
    s: &Setup,
    dir: &Path,
    model: &Path,
    adapter: Option<&Path>,
    prompts: &[&[u32]],
    mean_limit: f64,
    max_limit: f64,
) {
    let (ids, data) = (dir.join("prompts.json"), dir.join("prompts.jsonl"));
    std::fs::write(&ids, json!(prompts).to_string()).unwrap();
    let lines: Vec<String> =
        prompts.iter().map(|p| json!({"input_ids": p, "labels": p}).to_string()).collect();
    std::fs::write(&data, lines.join("\n")).unwrap();
    let probe = s.golden.join("llamacpp/probe.py");
    let theirs_path = dir.join("theirs.json");
    let mut args = vec![text(&probe), text(model), "--prompts", text(&ids), "--out", text(&theirs_path)];
    args.extend(adapter.iter().flat_map(|a| ["--lora", text(a)]));
    run(&s.python, &args);
    let theirs: Value = serde_json::from_slice(&std::fs::read(&theirs_path).unwrap()).unwrap();
    let mut args = vec!["eval", text(model), text(&data), "--logprobs", "--top", "100", "--json"];
    args.extend(adapter.iter().flat_map(|a| ["--adapter", text(a)]));
    let ours: Vec<Value> = run(&s.bin, &args).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (mut sum, mut max, mut count) = (0.0, 0f64, 0usize);
    for (doc, positions) in theirs.as_array().unwrap().iter().enumerate() {
        for position in positions.as_array().unwrap() {
            let pos = &position["position"];
            let line = ours.iter().find(|o| o["doc"] == doc && o["pos"] == *pos).unwrap();
            let known: BTreeMap<u64, f64> = pairs(&line["top"]).into_iter().collect();
            let theirs = pairs(&position["top"]);
            let common: Vec<f64> =
                theirs.iter().filter_map(|(id, l)| Some((known.get(id)? - l).abs())).collect();
            assert!(theirs.len() == 50 && common.len() >= 45, "{} of 50 tokens are ours too", common.len());
            sum += common.iter().sum::<f64>();
            max = common.iter().copied().fold(max, f64::max);
            count += common.len();
        }
    }
    let mean = sum / count as f64;
    let what = adapter.map_or("", |_| " + adapter");
    eprintln!(
        "{}{what}: {count} log-probabilities, mean difference {mean:.5}, largest {max:.5}",
        model.display()
    );
    assert!(count >= 45 * 16 * prompts.len() && mean <= mean_limit && max <= max_limit);
}

fn pairs(top: &Value) -> Vec<(u64, f64)> {
    top.as_array().unwrap().iter().map(|p| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap())).collect()
}
