//! The first command of a new user: `planish train` alone. How near the model comes to the entropy of its stories,
//! whether what it tells is a story, and whether llama.cpp tells the same.
//!
//! Needs PLANISH_BIN (a release build), which comes with `cargo xtask test`; PLANISH_PYTHON for llama.cpp.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use planish_engine::Model;
use planish_testkit::files::needed;
use planish_text::tales::{self, Verdict};
use serde_json::Value;

fn run(program: &Path, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{} {args:?}: {stderr}", program.display());
    String::from_utf8(out.stdout).unwrap()
}

fn events(dir: &Path) -> Vec<Value> {
    let log = std::fs::read_to_string(dir.join("events.jsonl")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn train_alone_learns_to_tell_stories() {
    let Some(bin) = needed("PLANISH_BIN", "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    run(&bin, &["train", "--out", out.to_str().unwrap()]);
    let model = out.join("weights/latest");
    let model = model.to_str().unwrap();

    let events = events(&out);
    let last = events.iter().rfind(|e| e["kind"] == "eval").unwrap();
    let (loss, floor) = (last["loss"].as_f64().unwrap(), last["extra"]["floor"].as_f64().unwrap());
    eprintln!(
        "held-out loss {loss:.4}, the entropy is {floor:.4}: {:.1} % above",
        100.0 * (loss / floor - 1.0)
    );
    assert!(loss > floor && loss < 1.1 * floor);

    run(&bin, &["verify", model]);
    let steps = events.iter().filter(|e| e["kind"] == "step").count() as u64;
    let seen: HashSet<String> = (0..8 * steps).map(|i| tales::story(0, i)).collect();
    let samples: Vec<String> = (1..=20).map(|seed| sample(&bin, model, seed)).collect();
    let stories = samples.iter().filter(|s| !matches!(tales::check(s), Verdict::Wrong { .. })).count();
    let new = samples.iter().filter(|s| !seen.iter().any(|story| story.contains(*s))).count();
    eprintln!("{stories} of 20 samples are stories, {new} are not in the training text");
    assert!(stories >= 18 && new >= 19, "{samples:#?}");

    if let Some(python) = needed("PLANISH_PYTHON", "") {
        let prompt = "Once upon a time";
        let want = greedy_in_llama_cpp(&python, dir.path(), Path::new(model), prompt);
        let got = run(&bin, &["generate", model, "-p", prompt, "-n", "64"]);
        assert_eq!(got.trim_end(), want.trim_end());
    }
}

fn sample(bin: &Path, model: &str, seed: u64) -> String {
    let seed = seed.to_string();
    let args = ["generate", model, "-p", "", "-n", "100", "--temp", "0.5", "--seed", &seed];
    run(bin, &args).trim_end().to_string()
}

/// What llama.cpp makes of the prompt: 64 most probable tokens, or fewer at the end of the story.
fn greedy_in_llama_cpp(python: &Path, dir: &Path, path: &Path, prompt: &str) -> String {
    let model = Model::open(path).unwrap();
    let tokenizer = model.tokenizer.as_ref().unwrap();
    let (prompts, out) = (dir.join("prompts.json"), dir.join("greedy.json"));
    std::fs::write(&prompts, serde_json::to_vec(&[tokenizer.prompt(prompt).unwrap()]).unwrap()).unwrap();
    let probe = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/llamacpp/probe.py");
    let paths = [&probe, &path.to_path_buf(), &prompts, &out].map(|p| p.to_str().unwrap().to_string());
    let [probe, model_path, prompts, out] = &paths;
    run(python, &[probe, model_path, "--prompts", prompts, "--generate", "64", "--ctx", "256", "--out", out]);
    let greedy: Vec<Vec<u32>> = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    tokenizer.decode(&greedy[0])
}
