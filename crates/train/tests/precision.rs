//! Products of bf16 learn what products of f32 learn.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test fails and reports

mod common;

use planish_base::{CancelToken, TypeId};
use planish_train::{EvalSplit, Observer, RunConfig, Start, StepReport, tune};
use tempfile::TempDir;

#[derive(Default)]
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn step(&mut self, _: usize, _: usize, report: &StepReport) {
        self.0.push(report.loss);
    }
}

impl Losses {
    /// The mean of the last 20.
    fn end(&self) -> f64 {
        self.0.iter().rev().take(20).sum::<f64>() / 20.0
    }
}

fn losses(config: &RunConfig, precision: &str) -> Losses {
    let dir = TempDir::new().unwrap();
    let config = RunConfig { precision: precision.into(), ..config.clone() };
    let mut losses = Losses::default();
    let start = Start::New { out: dir.path().join("run"), run_id: precision.into() };
    tune(&config, start, &CancelToken::new(), &mut losses).unwrap();
    losses
}

#[test]
fn after_200_steps_the_loss_is_that_of_f32() {
    for full in [false, true] {
        let dir = TempDir::new().unwrap();
        let (model, data) = (dir.path().join("tiny.gguf"), dir.path().join("data.jsonl"));
        common::write_model(&model, TypeId::Q8_0);
        common::write_data(&data, &common::examples(40));
        let config = RunConfig {
            base: model,
            data: vec![data],
            eval_split: EvalSplit::Count(0),
            full,
            steps: Some(200),
            rank: 8,
            // At twice this rate runs of all weights end 1.5 % apart to either side, whichever the seed.
            lr: Some(1e-3),
            sample_tokens: 0,
            ..RunConfig::default()
        };
        let [f32, bf16] = ["f32", "bf16"].map(|precision| losses(&config, precision));
        let difference = bf16.end() / f32.end() - 1.0;
        eprintln!("full {full}: {:.4} to {:.4}, bf16 {:+.3} %", f32.0[0], f32.end(), 100.0 * difference);
        assert!(f32.end() < 0.7 * f32.0[0], "nothing was learned: {} to {}", f32.0[0], f32.end());
        assert!(difference.abs() < 0.01, "bf16 ends at {}, f32 at {}", bf16.end(), f32.end());
        assert_ne!(bf16.0, f32.0, "bf16 computes something else");
    }
}
