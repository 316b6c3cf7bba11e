//! Training against PyTorch and PEFT, and the invariants of an optimizer step.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

use std::path::{Path, PathBuf};

use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::{AdapterSet, AdapterSpec, PairValues, ROLES, Role, Trainable};
use planish_store::safetensors::SafeTensors;
use planish_testkit::files::needed;
use planish_text::Example;
use planish_train::Trainer;
use planish_train::optim::{Class, OptimSettings, OptimState, Target, of};
use serde_json::Value;

const SETTINGS: OptimSettings = OptimSettings::USUAL;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/llama").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn load(path: &Path, trainable: Trainable, threads: usize, tokens: usize) -> Engine {
    let (isa, recompute) = (Isa::detect(), false);
    let options =
        EngineOptions { threads, isa, context: 64, tokens, trainable, recompute, precision: Precision::F32 };
    Engine::new(Model::open(path).unwrap(), options).unwrap()
}

/// Every token but the first is trained.
fn example(ids: &Value) -> Example {
    let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let trained = (0..ids.len()).map(|i| i > 0).collect();
    Example { ids, trained, place: "test".into() }
}

fn batches(v: &Value) -> Vec<Vec<Example>> {
    v.as_array().unwrap().iter().map(|b| b.as_array().unwrap().iter().map(example).collect()).collect()
}

fn full_targets(engine: &Engine, decay: f32) -> Vec<Target> {
    let trainable = engine.params.trainable();
    trainable
        .map(|n| Target {
            name: n.name.clone(),
            param: n.param,
            class: Class::Map,
            weight_decay: decay,
            rate: 1.0,
        })
        .collect()
}

fn adapter_targets(set: &AdapterSet, decay: f32) -> Vec<Target> {
    let params = set.pairs().flat_map(|(_, p)| [p.a, p.b]);
    params
        .map(|param| Target { name: String::new(), param, class: Class::Map, weight_decay: decay, rate: 1.0 })
        .collect()
}

fn trainer(engine: &mut Engine, targets: Vec<Target>, clip: f64, micro_batch: usize) -> Trainer {
    let state = OptimState::new(&mut engine.backend, of("adamw").unwrap(), SETTINGS, &targets).unwrap();
    Trainer::new(engine, targets, state, clip, micro_batch).unwrap()
}

/// Losses and gradient norms of each step of a golden AdamW curve.
fn follow(
    engine: &mut Engine,
    set: Option<&AdapterSet>,
    targets: Vec<Target>,
    curve: &Value,
    data: &[Vec<Example>],
    tolerance: f64,
) {
    let adapters: Vec<&AdapterSet> = set.into_iter().collect();
    let lr = curve["lr"].as_f64().unwrap();
    let mut trainer = trainer(engine, targets, 0.0, 2);
    let (losses, norms) = (curve["losses"].as_array().unwrap(), curve["grad_norms"].as_array().unwrap());
    let (mut worst, mut worst_norm) = (0f64, 0f64);
    for (s, want) in losses.iter().enumerate() {
        let examples: Vec<&Example> = data[s % data.len()].iter().collect();
        let report = trainer.step(engine, &adapters, &examples, s, lr, 0).unwrap();
        worst = worst.max((report.loss - want.as_f64().unwrap()).abs());
        if let Some(norm) = norms.get(s) {
            worst_norm = worst_norm.max((report.grad_norm / norm.as_f64().unwrap() - 1.0).abs());
        }
    }
    eprintln!("{} losses, worst difference {worst:e}, gradient norms {worst_norm:e}", losses.len());
    assert!(worst <= tolerance && worst_norm <= 1e-3);
}

#[test]
fn adamw_on_all_weights() {
    for (name, recompute) in [("tied_gqa", false), ("tied_gqa", true), ("untied_mha", false)] {
        let numbers = json(&golden(name).join("expected.json"));
        let curve = &numbers["adamw"];
        let mut engine = load(&golden(name), Trainable::Everything, 2, 256);
        engine.set_recompute(recompute);
        let targets = full_targets(&engine, curve["weight_decay"].as_f64().unwrap() as f32);
        follow(&mut engine, None, targets, curve, &batches(&numbers["train_batches"]), 1e-4);
    }
}

/// The first 20 LoRA steps of SmolLM2 from PEFT's own A init, on the Q4_1 file.
#[test]
fn lora_steps_of_smollm2() {
    let Some(golden) = needed("PLANISH_SHARED", "golden/smollm2") else { return };
    let Some(model) = needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf") else { return };
    let (tokens, train) = (json(&golden.join("tokens.json")), json(&golden.join("train.json")));
    let data = batches(&tokens["train_batches"]);
    for (name, roles) in [("lora_qv_r8", &[Role::Q, Role::V][..]), ("lora_all_r4", &ROLES[..])] {
        let curve = &train[name];
        let init = SafeTensors::open(&golden.join(format!("{name}_A_init.safetensors"))).unwrap();
        let mut engine = load(&model, Trainable::Nothing, 2, 256);
        let rank = curve["rank"].as_u64().unwrap() as usize;
        let mut set = AdapterSet::default();
        for id in engine.model.spec.linears(roles) {
            let gguf = format!("{}.weight", engine.model.arch.linear_name(id));
            let hf = engine.model.arch.hf_name(&gguf).unwrap();
            let name = format!("base_model.model.{}", hf.replace(".weight", ".lora_A.weight"));
            let data = init.get(&name).unwrap().data;
            let a: Vec<f32> =
                data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let b = vec![0f32; engine.model.spec.linear_shape(id).0 * rank];
            let values = PairValues { rank, a: &a, b: &b, scale: 2.0, magnitude: None };
            set.insert(&mut engine.backend, id, &values, true).unwrap();
        }
        let targets = adapter_targets(&set, curve["weight_decay"].as_f64().unwrap() as f32);
        follow(&mut engine, Some(&set), targets, curve, &data, 1e-3);
    }
}

/// The first steps of all weights of SmolLM2 from the values of the Q4_1 file. Embedding and head are one tensor, whose
/// gradient is the sum of both uses. The tolerance is three times what f32 sums in another order were seen to make.
#[test]
fn full_steps_of_smollm2() {
    let Some(golden) = needed("PLANISH_SHARED", "golden/smollm2") else { return };
    let Some(model) = needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf") else { return };
    let (tokens, train) = (json(&golden.join("tokens.json")), json(&golden.join("train.json")));
    let curve = &train["full"];
    let mut engine = load(&model, Trainable::Everything, 2, 256);
    assert!(engine.model.spec.tied && engine.params.trainable().all(|n| n.name != "output.weight"));
    let targets = full_targets(&engine, curve["weight_decay"].as_f64().unwrap() as f32);
    follow(&mut engine, None, targets, curve, &batches(&tokens["train_batches"]), 3e-5);
}

/// Ragged examples of which only some tokens are trained.
fn ragged_examples() -> Vec<Example> {
    let lengths = [24, 5, 17, 2, 31, 9, 12, 3];
    let make = |(i, n): (usize, &usize)| {
        let ids = (0..*n).map(|j| ((i * 31 + j * 17) % 96) as u32).collect();
        let trained = (0..*n).map(|j| j > 0 && (j + i) % 3 != 0 || j == 1).collect();
        Example { ids, trained, place: format!("test:{}", i + 1) }
    };
    lengths.iter().enumerate().map(make).collect()
}

fn adapter() -> AdapterSpec {
    AdapterSpec {
        rank: 4,
        alpha: 8.0,
        rslora: false,
        targets: ROLES.to_vec(),
        dropout: 0.1,
        ..AdapterSpec::default()
    }
}

#[test]
fn accumulation_equals_the_big_batch() {
    let data = ragged_examples();
    let examples: Vec<&Example> = data.iter().collect();
    let gradients = |micro_batch: usize| {
        let mut engine = load(&golden("tied_gqa"), Trainable::Everything, 2, 256);
        let targets = full_targets(&engine, 0.0);
        let trainer = trainer(&mut engine, targets, 0.0, micro_batch);
        trainer.gradients(&mut engine, &[], &examples, 0, 0).unwrap();
        let grads = trainer.targets().iter().map(|t| engine.backend.download_f32(&t.param.grad.unwrap()));
        grads.collect::<Vec<_>>()
    };
    let whole = gradients(8);
    for micro_batch in [1, 2, 3] {
        let (mut square, mut error) = (0f64, 0f64);
        for (w, g) in whole.iter().flatten().zip(gradients(micro_batch).iter().flatten()) {
            square += f64::from(*w).powi(2);
            error += f64::from(w - g).powi(2);
        }
        let relative = (error / square).sqrt();
        eprintln!("micro-batches of {micro_batch}: {relative:e}");
        assert!(relative <= 1e-5);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let data = ragged_examples();
    let mut first: Option<(Vec<u64>, Vec<u32>)> = None;
    for threads in [1, 2, 3, 8] {
        let mut engine = load(&golden("tied_gqa"), Trainable::Nothing, threads, 256);
        let spec = engine.model.spec.clone();
        let set = AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter(), 3).unwrap();
        let targets = adapter_targets(&set, 0.01);
        let mut trainer = trainer(&mut engine, targets, 1.0, 3);
        let mut losses = Vec::new();
        for s in 0..5 {
            let examples: Vec<&Example> = data.iter().skip(s % 3).collect();
            losses.push(trainer.step(&mut engine, &[&set], &examples, s, 1e-2, 3).unwrap().loss.to_bits());
        }
        let values = trainer.targets().iter().flat_map(|t| engine.backend.download_f32(&t.param.view));
        let run = (losses, values.map(f32::to_bits).collect());
        assert_eq!(*first.get_or_insert_with(|| run.clone()), run, "{threads} threads");
    }
}

/// Examples side by side in one batch do not see each other: the loss is that of each alone.
#[test]
fn neighbours_do_not_matter() {
    let data = ragged_examples();
    let mut engine = load(&golden("tied_gqa"), Trainable::Nothing, 2, 256);
    let together = {
        let b = planish_text::batch(&data.iter().collect::<Vec<_>>());
        let segments = planish_engine::score::segments(&b);
        engine.train_batch(&planish_engine::score::ragged(&b, &segments), &[], 1.0).unwrap()
    };
    let alone: Vec<f32> = data
        .iter()
        .flat_map(|e| planish_engine::score::example(&mut engine, e, &[], 0).unwrap())
        .map(|s| -s.logprob)
        .collect();
    assert_eq!(together.len(), alone.len());
    assert!(together.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()));
}
