//! Adapters of every kind in training: gradients and a step against peft (golden/lora), and what each option does to a
//! run.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::path::{Path, PathBuf};

use planish_base::{CancelToken, Error, Kind, TypeId};
use planish_compute::{Backend, View};
use planish_engine::{AdapterFile, Binding, Engine, Model, score};
use planish_model::{AdapterSet, LinearId, PairValues, Role, Trainable};
use planish_store::safetensors::SafeTensors;
use planish_tape::Param;
use planish_text::Example;
use planish_train::optim::{Class, OptimState, Target, of};
use planish_train::{Observer, Plan, RunConfig, Start, Trainer, Tuned, tune};
use serde_json::Value;

/// Name, base, and the rate of B as a multiple of that of A.
const CASES: [(&str, &str, f32); 5] = [
    ("layers", "tied_gqa", 1.0),
    ("pattern", "tied_gqa", 4.0),
    ("tables", "untied_mha", 1.0),
    ("embedding", "tied_gqa", 1.0),
    ("dora", "tied_gqa", 1.0),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

/// The parts of an adapter, by their names in peft's file; a part that lies transposed there has its columns there.
fn parts(engine: &Engine, set: &AdapterSet) -> Vec<(String, Param, Option<usize>)> {
    let mut parts = Vec::new();
    for (id, pair) in set.pairs() {
        let hf = engine.model.arch.hf_name(&format!("{}.weight", engine.model.arch.linear_name(id))).unwrap();
        let name = |part: &str| format!("base_model.model.{}.{part}", hf.strip_suffix(".weight").unwrap());
        if id.role == Role::Embed {
            parts.push((name("lora_embedding_B"), pair.a, Some(pair.a.view.rows)));
            parts.push((name("lora_embedding_A"), pair.b, Some(pair.b.view.rows)));
            continue;
        }
        parts.push((name("lora_A.weight"), pair.a, None));
        parts.push((name("lora_B.weight"), pair.b, None));
        parts.extend(pair.magnitude.map(|m| (name("lora_magnitude_vector"), m.m, None)));
    }
    parts
}

/// The largest difference, relative to the largest value.
fn off(engine: &Engine, got: &View, file: &SafeTensors, name: &str, columns: Option<usize>) -> f32 {
    let want = file.get(name).unwrap().data.chunks_exact(4);
    let want: Vec<f32> = want.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let got = engine.backend.download_f32(got);
    assert_eq!(got.len(), want.len(), "{name}");
    let at = |i: usize| match columns {
        // Element (r, c) of ours is (c, r) there.
        Some(columns) => want[i % (want.len() / columns) * columns + i / (want.len() / columns)],
        None => want[i],
    };
    let most = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = got.iter().enumerate().map(|(i, g)| (g - at(i)).abs()).fold(0f32, f32::max);
    worst / most
}

/// Loss, gradients of every part, and one step of AdamW, that of LoRA+ among them.
#[test]
fn gradients_and_steps_are_pefts() {
    for (case, base, rate) in CASES {
        let (dir, base) = (golden("lora").join(case), golden("llama").join(base));
        let mut engine = common::engine(&base, Trainable::Nothing, 2);
        let file = AdapterFile::read(&dir, &engine.model, Binding::Strict).unwrap();
        let mut set = AdapterSet::default();
        for (id, p) in &file.pairs {
            let magnitude = p.magnitude.as_deref();
            let values = PairValues { rank: p.rank, a: &p.a, b: &p.b, scale: p.scale, magnitude };
            set.insert(&mut engine.backend, *id, &values, true).unwrap();
        }
        let target = |(name, param, _): &(String, Param, Option<usize>)| {
            let rate = if name.contains("lora_B") { rate } else { 1.0 };
            Target { name: name.clone(), param: *param, class: Class::Map, weight_decay: 0.0, rate }
        };
        let parts = parts(&engine, &set);
        let targets: Vec<Target> = parts.iter().map(target).collect();
        let adamw = of("adamw").unwrap();
        let state = OptimState::new(&mut engine.backend, adamw, adamw.usual, &targets).unwrap();
        let mut trainer = Trainer::new(&mut engine, targets, state, 0.0, 1).unwrap();
        let ids: Value = serde_json::from_slice(&std::fs::read(base.join("expected.json")).unwrap()).unwrap();
        let examples: Vec<Example> = ids["ids"].as_array().unwrap().iter().map(example).collect();
        let report = trainer.step(&mut engine, &[&set], &examples.iter().collect::<Vec<_>>(), 0, 1e-2, 0);
        let expected = SafeTensors::open(&dir.join("expected.safetensors")).unwrap();
        let loss = expected.get("loss").unwrap().data;
        let loss = f64::from(f32::from_le_bytes(loss.try_into().unwrap()));
        let got = report.unwrap().loss;
        assert!((got / loss - 1.0).abs() < 1e-5, "{case}: loss {got}, {loss}");
        for (name, param, columns) in &parts {
            let gradient = off(&engine, &param.grad.unwrap(), &expected, &format!("grad.{name}"), *columns);
            assert!(gradient < 2e-5, "{case}: gradient of {name} off by {gradient:e}");
            let step = off(&engine, &param.view, &expected, &format!("step.{name}"), *columns);
            assert!(step < 2e-5, "{case}: {name} after a step off by {step:e}");
        }
    }
}

fn example(ids: &Value) -> Example {
    let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    Example { trained: (0..ids.len()).map(|i| i > 0).collect(), ids, place: "test".into() }
}

/// What a case does to the settings.
type Change = fn(&mut RunConfig);

/// A folder with the tiny model and data.
struct Place {
    dir: tempfile::TempDir,
    config: RunConfig,
}

#[derive(Default)]
struct Seen {
    plan: Plan,
    losses: Vec<u64>,
}

impl Observer for Seen {
    fn plan(&mut self, plan: &Plan) {
        self.plan = plan.clone();
    }

    fn step(&mut self, _: usize, _: usize, report: &planish_train::StepReport) {
        self.losses.push(report.loss.to_bits());
    }
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::TempDir::new().unwrap();
        common::write_model(&dir.path().join("tiny.gguf"), TypeId::Q8_0);
        common::write_data(&dir.path().join("data.jsonl"), &common::examples(11));
        let config = RunConfig {
            base: dir.path().join("tiny.gguf"),
            data: vec![dir.path().join("data.jsonl")],
            eval_split: planish_train::EvalSplit::Count(2),
            rank: 4,
            alpha: 8.0,
            steps: Some(6),
            lr: Some(5e-3),
            schedule: "constant".into(),
            warmup: Some(0),
            ..RunConfig::default()
        };
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, config: &RunConfig, name: &str) -> Result<(Tuned, Seen), Error> {
        let mut seen = Seen::default();
        let start = Start::New { out: self.path(name), run_id: name.into() };
        let tuned = tune(config, start, &CancelToken::new(), &mut seen)?;
        Ok((tuned, seen))
    }

    fn adapter(&self, name: &str) -> AdapterFile {
        let model = Model::open(&self.config.base).unwrap();
        AdapterFile::read(&self.path(name).join("peft"), &model, Binding::Strict).unwrap()
    }

    /// Held-out loss with a file of weights: an adapter, or a whole model.
    fn loss(&self, model: &Path, adapter: Option<&Path>) -> f64 {
        let mut engine = common::engine(model, Trainable::Nothing, 1);
        let file = adapter.map(|a| AdapterFile::read(a, &engine.model, Binding::Strict).unwrap());
        let set = file.map(|f| f.attach(&mut engine, 1.0).unwrap());
        let data = common::examples(11);
        let examples: Vec<&Example> = data.iter().collect();
        let sets: Vec<&AdapterSet> = set.iter().collect();
        score::examples(&mut engine, examples, &sets).unwrap().loss()
    }
}

#[test]
fn pairs_are_where_and_as_large_as_they_were_asked_for() {
    let place = Place::new();
    let config = RunConfig {
        targets: "q,v,down".into(),
        layers: Some("1".into()),
        rank_pattern: [("q".to_string(), 2)].into(),
        alpha_pattern: [("down".to_string(), 2.0)].into(),
        ..place.config.clone()
    };
    let (_, seen) = place.run(&config, "a").unwrap();
    let file = place.adapter("a");
    let got: Vec<(LinearId, usize, f32)> = file.pairs.iter().map(|(id, p)| (*id, p.rank, p.scale)).collect();
    let id = |role| LinearId { layer: 1, role };
    assert_eq!(got, [(id(Role::Q), 2, 4.0), (id(Role::V), 4, 2.0), (id(Role::Down), 4, 0.5)]);
    // The tiny model has width 32, kv heads of 16 together, and an MLP of 64.
    assert_eq!(seen.plan.trained_parameters, (2 * (32 + 32) + 4 * (32 + 16) + 4 * (64 + 32)) as u64);
    assert_eq!(seen.plan.memory.trained_bytes, 4 * seen.plan.trained_parameters);
}

/// In its first step AdamW moves every element by its rate; of B alone, since A has no gradient while B is zero.
#[test]
fn loraplus_moves_b_by_its_own_rate() {
    let place = Place::new();
    let once = RunConfig { steps: Some(1), lr: Some(1e-3), ..place.config.clone() };
    let moved = |name: &str, config: &RunConfig| {
        place.run(config, name).unwrap();
        let file = place.adapter(name);
        file.pairs.values().flat_map(|p| p.b.clone()).fold(0f32, |m, v| m.max(v.abs()))
    };
    assert!((moved("a", &once) / 1e-3 - 1.0).abs() < 1e-3);
    let ratio = RunConfig { loraplus_ratio: Some(8.0), ..once };
    assert!((moved("b", &ratio) / 8e-3 - 1.0).abs() < 1e-3);
}

/// Whatever the recipe, the files that a run leaves compute what the run computed at its end.
#[test]
fn files_of_a_run_compute_what_it_trained() {
    let place = Place::new();
    let base = &place.config.base;
    let plain = place.loss(base, None);
    let cases: [(&str, Change, bool); 5] = [
        ("plain", |_| {}, true),
        ("pissa", |c| c.init_lora = "pissa".into(), true),
        ("dora", |c| c.dora = true, false),
        ("embed", |c| c.targets = "embed,q".into(), false),
        ("output", |c| c.targets = "output,q".into(), false),
    ];
    for (name, change, applies) in cases {
        let mut config = RunConfig { eval_split: planish_train::EvalSplit::Count(0), ..place.config.clone() };
        config.eval_data = config.data.clone();
        change(&mut config);
        let (tuned, _) = place.run(&config, name).unwrap();
        let (before, after) = tuned.eval.map(|(b, a)| (b.loss(), a.loss())).unwrap();
        assert!((before - plain).abs() < 1e-5, "{name} begins at {before}, the base has {plain}");
        assert!(after < before - 0.01, "{name}: nothing was learnt: {before} to {after}");
        let (weights, peft) = (tuned.weights.unwrap(), tuned.peft.unwrap());
        let from_peft = place.loss(base, Some(&peft));
        assert!(
            (from_peft - after).abs() < 1e-5,
            "{name}: {from_peft} from the PEFT directory, {after} at the end"
        );
        match applies {
            true => {
                let loss = place.loss(base, Some(&weights));
                assert!((loss - after).abs() < 1e-5, "{name}: {loss} from the adapter, {after} at the end");
            }
            // Encoded again in eight bits.
            false => {
                let loss = place.loss(&weights, None);
                assert!(
                    (loss - after).abs() < 0.02,
                    "{name}: {loss} from the merged model, {after} at the end"
                );
            }
        }
    }
}

/// PiSSA starts from the largest singular values, which the written pair takes away again: twice the rank, and B0 A0 of
/// a run that learnt nothing cancels.
#[test]
fn pissa_is_written_as_the_difference_to_its_start() {
    let place = Place::new();
    let config = RunConfig { init_lora: "pissa".into(), lr: Some(1e-30), ..place.config.clone() };
    place.run(&config, "a").unwrap();
    for (id, p) in place.adapter("a").pairs {
        assert_eq!((p.rank, p.scale), (8, 2.0), "{id}");
        let (a, b) = (p.a.chunks(p.inputs()), p.b.chunks(8));
        let a: Vec<&[f32]> = a.collect();
        assert!(a[..4] == a[4..] && a[0].iter().any(|v| *v != 0.0), "{id}");
        for row in b {
            assert!(row[..4].iter().zip(&row[4..]).all(|(x, y)| *x == -*y), "{id}");
        }
    }
}

/// Noise changes what is trained, and nothing but its key decides it; evaluation has none.
#[test]
fn noise_is_of_training_alone_and_the_same_on_any_number_of_threads() {
    let place = Place::new();
    for full in [false, true] {
        let config = RunConfig { full, neftune: Some(5.0), ..place.config.clone() };
        let run = |name: &str, change: &dyn Fn(&mut RunConfig)| {
            let mut config = config.clone();
            change(&mut config);
            let name = format!("{name}{full}");
            let (tuned, seen) = place.run(&config, &name).unwrap();
            (seen.losses, tuned.eval.unwrap().0.total.to_bits())
        };
        let (noisy, plain) = (run("noisy", &|_| {}), run("plain", &|c| c.neftune = None));
        assert_eq!(run("threads", &|c| c.threads = 3), noisy);
        assert!(noisy.0.iter().zip(&plain.0).all(|(a, b)| a != b), "every step has noise");
        assert_eq!(noisy.1, plain.1);
        assert_ne!(run("other", &|c| c.neftune = Some(6.0)).0, noisy.0);
    }
}

#[test]
fn settings_that_make_no_sense_are_usage_errors() {
    let place = Place::new();
    let cases: [(&str, Change); 14] = [
        ("layers", |c| c.layers = Some("1-".into())),
        ("block 2", |c| c.layers = Some("0-2".into())),
        ("rank-pattern", |c| (c.targets, c.rank_pattern) = ("q".into(), [("v".to_string(), 2)].into())),
        ("rank 0", |c| c.rank_pattern = [("v".to_string(), 0)].into()),
        ("alpha", |c| c.alpha_pattern = [("v".to_string(), -1.0)].into()),
        ("x", |c| c.alpha_pattern = [("x".to_string(), 1.0)].into()),
        ("loraplus-ratio", |c| c.loraplus_ratio = Some(0.0)),
        ("neftune", |c| c.neftune = Some(f32::NAN)),
        ("svd", |c| c.init_lora = "svd".into()),
        ("pissa", |c| (c.init_lora, c.init_adapter) = ("pissa".into(), Some("a".into()))),
        ("dora", |c| (c.dora, c.init_lora) = (true, "pissa".into())),
        ("embed", |c| (c.dora, c.targets) = (true, "q,embed".into())),
        ("full", |c| (c.full, c.dora) = (true, true)),
        ("layers", |c| (c.full, c.layers) = (true, Some("0".into()))),
    ];
    for (word, change) in cases {
        let mut config = place.config.clone();
        change(&mut config);
        let error = place.run(&config, "refused").map(|_| ()).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(word), "{word}: {error}");
        assert!(!place.path("refused").exists());
    }
}
