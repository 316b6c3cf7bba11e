//! A run does not grow: what it holds after ten steps it holds after thousands, evaluations, samples and checkpoints
//! included. Alone in its file, since it looks at the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test fails and reports
#![cfg(target_os = "linux")]

mod common;

use planish_base::{CancelToken, TypeId};
use planish_train::{EvalSplit, Observer, RunConfig, Start, StepReport, tune};
use tempfile::TempDir;

/// Bytes of this process that are no file's.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[derive(Default)]
struct Growth(Vec<(usize, u64)>);

impl Observer for Growth {
    fn step(&mut self, step: usize, _: usize, _: &StepReport) {
        if [10, 1_000, 20_000].contains(&step) {
            self.0.push((step, anonymous_bytes()));
        }
    }
}

#[test]
fn memory_is_flat_from_step_10_on() {
    let dir = TempDir::new().unwrap();
    let (model, data) = (dir.path().join("tiny.gguf"), dir.path().join("data.jsonl"));
    common::write_model(&model, TypeId::Q8_0);
    common::write_data(&data, &common::examples(12));
    let config = RunConfig {
        base: model,
        data: vec![data],
        eval_split: EvalSplit::Count(1),
        steps: Some(20_000),
        batch_size: 1,
        rank: 4,
        // The first of each comes before step 10.
        eval_every: Some(7),
        save_every: Some(9),
        sample_every: Some(8),
        lr: Some(1e-4),
        ..RunConfig::default()
    };
    let config = RunConfig { eval_every: Some(500), save_every: Some(1_000), ..config };
    let mut growth = Growth::default();
    let start = Start::New { out: dir.path().join("run"), run_id: "memory".into() };
    tune(&config, start, &CancelToken::new(), &mut growth).unwrap();
    eprintln!("anonymous memory after steps: {:?}", growth.0);
    let [(_, ten), (_, thousand), (_, last)] = growth.0[..] else { panic!("three steps") };
    assert!(thousand.abs_diff(ten) * 100 <= ten && last.abs_diff(ten) * 100 <= ten, "{:?}", growth.0);
}
