//! Values that are not finite: the weights stay those before the step, the report says where they came up.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use planish_base::{CancelToken, Error, Kind, TypeId};
use planish_compute::{Backend, View};
use planish_engine::Engine;
use planish_model::{AdapterSet, AdapterSpec, LinearId, ROLES, Role, Trainable};
use planish_text::Example;
use planish_train::optim::{Class, OptimState, Target};
use planish_train::{
    EvalSplit, OPTIMS, Observer, OnNonfinite, Optim, RunConfig, Start, StepReport, Trainer, tune,
};
use tempfile::TempDir;

/// The step, counted from 0, at which something is not finite.
const BAD_STEP: usize = 3;

struct Run {
    _dir: TempDir,
    engine: Engine,
    set: AdapterSet,
    trainer: Trainer,
    data: Vec<Example>,
}

impl Run {
    fn new() -> Run {
        Run::with(&OPTIMS[0])
    }

    fn with(optim: &'static Optim) -> Run {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("tiny.gguf");
        // Weights of our own, since mapped ones cannot be written to.
        common::write_model(&path, TypeId::F16);
        let mut engine = common::engine(&path, Trainable::Everything, 2);
        let adapter = AdapterSpec {
            rank: 4,
            alpha: 8.0,
            rslora: false,
            targets: ROLES.to_vec(),
            dropout: 0.0,
            ..AdapterSpec::default()
        };
        let spec = engine.model.spec.clone();
        let set = AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter, 3).unwrap();
        let params = set.pairs().flat_map(|(_, p)| [p.a, p.b]).collect::<Vec<_>>();
        let base = engine.params.trainable().map(|n| n.param);
        let targets: Vec<Target> = base
            .chain(params)
            .enumerate()
            .map(|(i, param)| Target {
                name: i.to_string(),
                param,
                class: Class::Map,
                weight_decay: 0.0,
                rate: 1.0,
            })
            .collect();
        let state = OptimState::new(&mut engine.backend, optim, optim.usual, &targets).unwrap();
        let trainer = Trainer::new(&mut engine, targets, state, 1.0, 2).unwrap();
        Run { _dir: dir, engine, set, trainer, data: common::examples(8) }
    }

    fn step(&mut self, s: usize) -> Result<StepReport, Error> {
        let examples: Vec<&Example> = (0..4).map(|i| &self.data[(4 * s + i) % 8]).collect();
        self.trainer.step(&mut self.engine, &[&self.set], &examples, s, 1e-3, 0)
    }

    fn bytes(&self) -> Vec<u8> {
        let all = [self.trainer.weights(), self.trainer.slots()].concat();
        let bytes = |(_, v): &(String, View)| {
            let mut bytes = vec![0; v.span() as usize];
            self.engine.backend.download(v, &mut bytes);
            bytes
        };
        all.iter().flat_map(bytes).collect()
    }

    fn poke(&mut self, view: &View, row: usize, value: f32) {
        let mut values = self.engine.backend.download_f32(view);
        values[row * view.cols] = value;
        self.engine.backend.upload_f32(view, &values);
    }

    /// Good steps, then one after `poke`; what it said.
    fn report(mut self, poke: impl FnOnce(&mut Run)) -> String {
        for s in 0..BAD_STEP {
            self.step(s).unwrap();
        }
        poke(&mut self);
        let before = self.bytes();
        let error = self.step(BAD_STEP).unwrap_err();
        assert_eq!((error.kind(), error.kind().exit_code()), (Kind::Diverged, 5));
        assert!(before == self.bytes(), "the weights or slots changed");
        let message = error.to_string();
        assert!(message.starts_with("step 4: loss ") && message.contains("on data.jsonl:"), "{message}");
        message
    }
}

#[test]
fn in_the_input() {
    for bad in [f32::NAN, f32::INFINITY] {
        // Token 7 is in the third example of this step, so in its second micro-batch.
        let message = Run::new().report(|run| {
            let table = run.engine.params.embedding.view;
            run.poke(&table, 7, bad);
        });
        let want = "first in embed, forward";
        assert!(message.contains(want) && message.contains("from token_embd.weight"), "{message}");
    }
}

#[test]
fn in_an_activation() {
    let optims = OPTIMS.iter();
    for (optim, bad) in optims.flat_map(|o| [f32::NAN, f32::INFINITY].map(|bad| (o, bad))) {
        let message = Run::with(optim).report(|run| {
            let id = LinearId { layer: 1, role: Role::Gate };
            let b = run.set.pairs().find(|(i, _)| *i == id).unwrap().1.b.view;
            run.poke(&b, 5, bad);
        });
        assert!(message.contains("of layer 1, forward"), "{}: {message}", optim.name);
        assert!(message.contains("from blk.1.ffn_gate.weight.lora_b"), "{message}");
    }
}

/// A value that is finite and whose product is not.
#[test]
fn in_an_activation_that_overflows() {
    let message = Run::new().report(|run| {
        let weight = run.engine.params.layers[0].gate_up[1].weight.view;
        run.poke(&weight, 3, f32::MAX);
    });
    assert!(message.contains("of layer 0, forward"), "{message}");
}

/// The loss is finite: only the gradient overflows. A weight near the largest number multiplies nothing in the
/// forward pass, since the other half of its pair is zero, and the gradient of that half in the backward pass.
#[test]
fn in_a_gradient() {
    let message = Run::new().report(|run| {
        let id = LinearId { layer: 0, role: Role::Down };
        let pair = *run.set.pairs().find(|(i, _)| *i == id).unwrap().1;
        let big = |v: &View, x: f32| vec![x; v.elements()];
        let (a, b) = (big(&pair.a.view, 3e38), big(&pair.b.view, 0.0));
        run.engine.backend.upload_f32(&pair.a.view, &a);
        run.engine.backend.upload_f32(&pair.b.view, &b);
        // A x itself must stay finite.
        let gate = run.engine.params.layers[0].gate_up[0].weight.view;
        let up = run.engine.params.layers[0].gate_up[1].weight.view;
        for v in [gate, up] {
            let small: Vec<f32> = run.engine.backend.download_f32(&v).iter().map(|x| x * 1e-3).collect();
            run.engine.backend.upload_f32(&v, &small);
        }
        let out = run.engine.params.norm.weight.unwrap().view;
        let large = big(&out, 1e5);
        run.engine.backend.upload_f32(&out, &large);
    });
    assert!(message.contains("backward"), "{message}");
    assert!(!message.contains("loss NaN") && !message.contains("loss inf"), "{message}");
}

struct Warnings(Vec<String>, Vec<usize>);

impl Observer for Warnings {
    fn warning(&mut self, text: &str) {
        self.0.push(text.to_string());
    }

    fn step(&mut self, step: usize, _: usize, _: &StepReport) {
        self.1.push(step);
    }
}

/// An embedding that is not a number is in the file, and one example in twelve asks for it.
#[test]
fn a_step_may_be_left_out() {
    let dir = TempDir::new().unwrap();
    let (model, data) = (dir.path().join("tiny.gguf"), dir.path().join("data.jsonl"));
    common::write_untied(&model, |name, j, value| {
        // Row 63 of the embedding.
        if name == "token_embd.weight" && j / 32 == 63 { f32::NAN } else { value }
    });
    let mut examples = common::examples(12);
    examples.iter_mut().for_each(|e| e.ids.iter_mut().for_each(|id| *id %= 63));
    examples[5].ids[2] = 63;
    common::write_data(&data, &examples);
    let config = RunConfig {
        base: model,
        data: vec![data],
        eval_split: EvalSplit::Count(0),
        epochs: 2.0,
        batch_size: 1,
        ..RunConfig::default()
    };
    let run = |on_nonfinite, name: &str| {
        let mut seen = Warnings(Vec::new(), Vec::new());
        let config = RunConfig { on_nonfinite, ..config.clone() };
        let start = Start::New { out: dir.path().join(name), run_id: name.into() };
        let result = tune(&config, start, &CancelToken::new(), &mut seen);
        (result, seen)
    };
    let (result, seen) = run(OnNonfinite::Stop, "stop");
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::Diverged);
    assert!(error.to_string().contains("data.jsonl:6") && error.to_string().contains("token_embd.weight"));
    // What was good is kept.
    let last = seen.1.last().unwrap();
    assert!(dir.path().join(format!("stop/checkpoints/step_{last}")).exists());
    let (result, seen) = run(OnNonfinite::Skip(1), "skip");
    let tuned = result.unwrap();
    assert_eq!((tuned.steps, tuned.skipped, seen.0.len(), seen.1.len()), (24, 2, 2, 22));
    assert!(seen.0.iter().all(|w| w.contains("data.jsonl:6")), "{:?}", seen.0);
    let (result, _) = run(OnNonfinite::Skip(0), "none");
    assert_eq!(result.unwrap_err().kind(), Kind::Diverged);
}
