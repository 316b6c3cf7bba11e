//! The log of runs: every line is as docs/reference/events.schema.json says, and what is said of weights and gradients is
//! what can be computed from the checkpoints.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use planish_base::{CancelToken, Kind, Result, TypeId};
use planish_compute::Backend;
use planish_engine::Engine;
use planish_model::{AdapterSet, ROLES, Role, Trainable};
use planish_store::safetensors::SafeTensors;
use planish_text::Example;
use planish_train::optim::{Class, OptimState, Target};
use planish_train::{
    Checkpoint, EvalSplit, OPTIMS, Observer, OnNonfinite, Order, Outcome, Resumed, RunConfig, Start,
    StepReport, Trainer, Tuned, tune,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const EXAMPLES: usize = 9;

/// Cancels after a step.
struct Stop(usize, CancelToken);

impl Observer for Stop {
    fn step(&mut self, step: usize, _: usize, _: &StepReport) {
        if step == self.0 {
            self.1.cancel();
        }
    }
}

/// A folder with the tiny model in F32, data, and runs.
struct Place {
    dir: TempDir,
    config: RunConfig,
}

impl Place {
    fn new(full: bool) -> Place {
        let dir = TempDir::new().unwrap();
        common::write_model(&dir.path().join("tiny.gguf"), TypeId::F32);
        common::write_data(&dir.path().join("data.jsonl"), &common::examples(EXAMPLES));
        let config = RunConfig {
            base: dir.path().join("tiny.gguf"),
            data: vec![dir.path().join("data.jsonl")],
            eval_split: EvalSplit::Count(0),
            full,
            rank: 4,
            alpha: 8.0,
            dropout: 0.1,
            steps: Some(6),
            lr: Some(5e-3),
            seed: 5,
            save_every: Some(1),
            keep: 10,
            grad_every: Some(2),
            drift_every: Some(3),
            ..RunConfig::default()
        };
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, name: &str, stop: usize) -> Result<Tuned> {
        let cancel = CancelToken::new();
        let start = Start::New { out: self.path(name), run_id: name.into() };
        tune(&self.config, start, &cancel, &mut Stop(stop, cancel.clone()))
    }

    fn resume(&self, name: &str) -> Result<Tuned> {
        let run = Box::new(Resumed::open(&self.path(name))?);
        let start = Start::Resume { run, allow: Vec::new() };
        let cancel = CancelToken::new();
        tune(&self.config, start, &cancel, &mut Stop(usize::MAX, cancel.clone()))
    }

    fn log(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name).join("events.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The events of a kind: step and tensor, and the rest.
    fn weights(&self, name: &str, kind: &str) -> BTreeMap<(u64, String), Value> {
        let events = self.log(name).into_iter().filter(|e| e["kind"] == kind);
        events.map(|e| ((e["step"].as_u64().unwrap(), e["param"].as_str().unwrap().to_string()), e)).collect()
    }
}

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/events.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every event is valid, of a kind that the schema knows, and has no key that it does not name.
fn check(log: &[Value], ends: bool) {
    let schema = schema();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let mut last = 0.0;
    for event in log {
        if let Some(error) = validator.iter_errors(event).next() {
            panic!("{event}: {error} at {}", error.instance_path());
        }
        let definition = &schema["$defs"][event["kind"].as_str().unwrap()]["properties"];
        for key in event.as_object().unwrap().keys().filter(|k| !["kind", "t"].contains(&k.as_str())) {
            assert!(!definition[key].is_null(), "{event}: {key} is not in the schema");
        }
        let t = event["t"].as_f64().unwrap();
        assert!(t >= last, "{event}: time goes back from {last}");
        last = t;
    }
    assert_eq!(log[0]["kind"], "run_start");
    assert_eq!(log.last().unwrap()["kind"] == "run_end", ends);
}

fn count(log: &[Value], kind: &str) -> usize {
    log.iter().filter(|e| e["kind"] == kind).count()
}

#[test]
fn logs_are_as_published() {
    for full in [false, true] {
        let mut place = Place::new(full);
        place.config.eval_split = EvalSplit::Count(2);
        place.config.eval_every = Some(2);
        place.start("whole", usize::MAX).unwrap();
        let log = place.log("whole");
        check(&log, true);
        let tensors = if full { 20 } else { 28 };
        assert_eq!((count(&log, "step"), count(&log, "eval")), (6, 4));
        assert_eq!((count(&log, "grad"), count(&log, "drift")), (3 * tensors, 2 * tensors));
        // What an adapter began with is kept in memory; what a model did is in its file.
        let memory = &log[0]["plan"]["memory"];
        assert_eq!(memory["initial_bytes"], if full { json!(0) } else { memory["trained_bytes"].clone() });
        for step in log.iter().filter(|e| e["kind"] == "step") {
            assert_eq!(step["ppl"].as_f64().unwrap(), step["loss"].as_f64().unwrap().exp());
        }
        // What is not asked for is not there.
        (place.config.grad_every, place.config.drift_every) = (None, None);
        place.start("quiet", usize::MAX).unwrap();
        let log = place.log("quiet");
        check(&log, true);
        assert_eq!(count(&log, "grad") + count(&log, "drift"), 0);
        assert_eq!(log[0]["plan"]["memory"]["initial_bytes"], 0);

        assert_eq!(place.start("stopped", 3).unwrap().outcome, Outcome::Interrupted);
        let log = place.log("stopped");
        check(&log, true);
        assert_eq!(log.last().unwrap()["reason"], "interrupted");
        // A kill may have cut the last line.
        let path = place.path("stopped/events.jsonl");
        let mut text = std::fs::read_to_string(&path).unwrap();
        place.resume("stopped").unwrap();
        let log = place.log("stopped");
        check(&log, true);
        assert_eq!((count(&log, "resume"), count(&log, "run_end"), count(&log, "step")), (1, 2, 6));
        text.truncate(text.len() - 9);
        assert!(serde_json::from_str::<Value>(text.lines().last().unwrap()).is_err());
        std::fs::write(&path, &text).unwrap();
        place.resume("stopped").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        assert_eq!(whole.len() + 1, text.lines().count());
        check(&whole, true);
    }
}

/// A row of the embedding is no number, and an example asks for it.
#[test]
fn logs_of_what_is_not_finite_are_as_published() {
    let mut place = Place::new(false);
    common::write_untied(&place.config.base, |name, j, value| {
        if name == "token_embd.weight" && j / 32 == 63 { f32::NAN } else { value }
    });
    let mut examples = common::examples(EXAMPLES);
    examples.iter_mut().for_each(|e| e.ids.iter_mut().for_each(|id| *id %= 63));
    examples[5].ids[2] = 63;
    common::write_data(&place.config.data[0], &examples);
    place.config.batch_size = 1;
    place.config.steps = Some(EXAMPLES);
    assert_eq!(place.start("stop", usize::MAX).unwrap_err().kind(), Kind::Diverged);
    let log = place.log("stop");
    check(&log, true);
    let end = log.last().unwrap();
    assert_eq!((&end["reason"], &end["exit_code"]), (&json!("aborted"), &json!(5)));
    assert!(end["error"].as_str().unwrap().contains("data.jsonl:6"));
    place.config.on_nonfinite = OnNonfinite::Skip(1);
    place.start("skip", usize::MAX).unwrap();
    let log = place.log("skip");
    check(&log, true);
    assert_eq!((count(&log, "skip"), count(&log, "step")), (1, EXAMPLES - 1));
}

/// The schema says no to what is wrong, and yes to what it does not know.
#[test]
fn the_schema_tells_right_from_wrong() {
    let schema = schema();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let step = json!({"kind": "step", "t": 1.5, "step": 1, "phase": "train", "loss": 2.0, "ppl": 7.4, "lr": 0.1,
                      "tokens": 3, "trained": 2, "grad_norm": null, "wall_us": 12});
    assert!(validator.is_valid(&step));
    let with = |key: &str, value: Value| {
        let mut event: Map<String, Value> = step.as_object().unwrap().clone();
        event.insert(key.into(), value);
        validator.is_valid(&Value::Object(event))
    };
    assert!(with("own", json!({"x": 1})) && with("kind", json!("align")));
    assert!(!with("loss", json!("2.0")) && !with("step", json!(0)) && !with("t", json!(-1)));
    assert!(!with("kind", json!("run_end")) && !with("phase", json!("serve")));
    for key in ["kind", "t", "step", "loss", "ppl"] {
        let mut event = step.as_object().unwrap().clone();
        event.remove(key);
        assert!(!validator.is_valid(&Value::Object(event)), "{key}");
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The name that events give to a tensor of a checkpoint.
fn param(name: &str) -> String {
    let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["blk", layer, role, half] if half.starts_with("lora_") => {
            let i = ROLES.iter().position(|r| r.name() == role).unwrap();
            format!("blk.{layer}.{}.weight#{half}", names[i])
        }
        _ => name.to_string(),
    }
}

fn saved(place: &Place, run: &str, step: u64) -> BTreeMap<String, Vec<f32>> {
    let path = place.path(&format!("{run}/checkpoints/step_{step}/weights.safetensors"));
    let file = SafeTensors::open(&path).unwrap();
    file.names().map(|name| (param(name), floats(file.get(name).unwrap().data))).collect()
}

/// What a run begins with: the base's values, or the adapter that the seed gives.
fn initial(place: &Place) -> BTreeMap<String, Vec<f32>> {
    let mut engine = common::engine(&place.config.base, Trainable::Nothing, 1);
    if place.config.full {
        let weights = &engine.model.weights;
        return weights.entries.iter().map(|(name, e)| (name.clone(), floats(weights.bytes(e)))).collect();
    }
    let (spec, adapter) = (engine.model.spec.clone(), place.config.adapter().unwrap());
    let set =
        AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter, place.config.seed).unwrap();
    let halves = set.pairs().flat_map(|(id, p)| [(id, "a", p.a), (id, "b", p.b)]);
    halves
        .map(|(id, half, p)| {
            let name = param(&format!("blk.{}.{}.lora_{half}", id.layer, Role::name(id.role)));
            (name, engine.backend.download_f32(&p.view))
        })
        .collect()
}

/// Drift is that between checkpoint and beginning, also when the run was stopped and gone on with in between.
#[test]
fn drift_is_that_of_the_checkpoints() {
    for full in [false, true] {
        let place = Place::new(full);
        place.start("run", 4).unwrap();
        place.resume("run").unwrap();
        let (events, initial) = (place.weights("run", "drift"), initial(&place));
        assert_eq!(events.len(), 2 * initial.len());
        for step in [3, 6] {
            let now = saved(&place, "run", step);
            assert!(now.keys().eq(initial.keys()), "{:?}", now.keys());
            for (name, values) in &now {
                let event = &events[&(step, name.clone())];
                let pairs = || values.iter().zip(&initial[name]).map(|(a, b)| (f64::from(*a), f64::from(*b)));
                let sum = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
                let apart = sum(|(a, b)| (a - b).powi(2)).sqrt();
                assert!((event["l2_to_init"].as_f64().unwrap() - apart).abs() <= 1e-12 * apart);
                assert!(apart > 0.0, "{name} did not move");
                let cosine = sum(|(a, b)| a * b) / sum(|(a, _)| a * a).sqrt() / sum(|(_, b)| b * b).sqrt();
                match event["cos_to_init"].as_f64() {
                    Some(got) => assert!((got - cosine).abs() <= 1e-12, "{name}: {got} {cosine}"),
                    // B begins as zero, which has no direction.
                    None => assert!(cosine.is_nan() && name.ends_with("lora_b"), "{name}"),
                }
            }
        }
    }
}

/// A trainer as the run has it.
fn trainer(place: &Place) -> (Engine, Option<AdapterSet>, Trainer) {
    let config = &place.config;
    let trainable = if config.full { Trainable::Everything } else { Trainable::Nothing };
    let mut engine = common::engine(&config.base, trainable, 1);
    let (spec, adapter) = (engine.model.spec.clone(), config.adapter().unwrap());
    let set = (!config.full).then(|| {
        AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter, config.seed).unwrap()
    });
    let target =
        |name: String, param| Target { name, param, class: Class::Map, weight_decay: 0.0, rate: 1.0 };
    let targets: Vec<Target> = match &set {
        Some(set) => set
            .pairs()
            .flat_map(|(id, p)| [(id, "a", p.a), (id, "b", p.b)])
            .map(|(id, half, p)| target(format!("blk.{}.{}.lora_{half}", id.layer, id.role.name()), p))
            .collect(),
        None => engine.params.trainable().map(|n| target(n.name.clone(), n.param)).collect(),
    };
    let state = OptimState::new(&mut engine.backend, &OPTIMS[0], OPTIMS[0].usual, &targets).unwrap();
    let trainer = Trainer::new(&mut engine, targets, state, config.clip, config.micro_batch).unwrap();
    (engine, set, trainer)
}

/// The gradients of a step are those at the weights of the checkpoint before it.
#[test]
fn gradients_are_those_at_the_checkpoint_before() {
    for full in [false, true] {
        let place = Place::new(full);
        place.start("run", usize::MAX).unwrap();
        let events = place.weights("run", "grad");
        let data = common::examples(EXAMPLES);
        let c = &place.config;
        let order = Order { seed: c.seed, examples: EXAMPLES, batch_size: c.batch_size };
        for step in [2, 4, 6] {
            let (mut engine, set, mut trainer) = trainer(&place);
            let checkpoint = place.path(&format!("run/checkpoints/step_{}", step - 1));
            Checkpoint::open(&checkpoint).unwrap().restore(&mut engine, &mut trainer).unwrap();
            let examples: Vec<&Example> = order.step(step - 1).into_iter().map(|i| &data[i]).collect();
            let adapters: Vec<&AdapterSet> = set.iter().collect();
            trainer.gradients(&mut engine, &adapters, &examples, step - 1, c.seed).unwrap();
            for t in trainer.targets() {
                let event = &events[&(step as u64, param(&t.name))];
                let grad = engine.backend.download_f32(&t.param.grad.unwrap());
                let l2 = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let mean = grad.iter().map(|g| f64::from(g.abs())).sum::<f64>() / grad.len() as f64;
                assert!((event["l2"].as_f64().unwrap() - l2).abs() <= 1e-12 * l2, "{event} {l2}");
                assert!((event["abs_mean"].as_f64().unwrap() - mean).abs() <= 1e-12 * mean, "{event} {mean}");
                assert!(l2 > 0.0 && event["nan_count"] == 0, "{event}");
                let (rows, cols) = (t.param.view.rows, t.param.view.cols);
                assert_eq!(event["shape"], if rows == 1 { json!([cols]) } else { json!([rows, cols]) });
            }
        }
        let count = events.len();
        assert_eq!(count, 3 * trainer(&place).2.targets().len());
    }
}

/// No optimizer changes the gradients that it is given: those of all tensors have the norm that the step had.
#[test]
fn gradients_are_those_of_the_step_with_every_optimizer() {
    for optim in OPTIMS {
        let mut place = Place::new(true);
        place.config.optimizer = optim.name.into();
        place.config.steps = Some(2);
        place.start("run", usize::MAX).unwrap();
        let step = place.log("run").into_iter().find(|e| e["kind"] == "step" && e["step"] == 2);
        let norm = step.unwrap()["grad_norm"].as_f64().unwrap();
        let events = place.weights("run", "grad");
        let sum = events.values().map(|e| e["l2"].as_f64().unwrap().powi(2)).sum::<f64>().sqrt();
        assert!((sum - norm).abs() <= 1e-12 * norm, "{}: {sum} {norm}", optim.name);
    }
}
