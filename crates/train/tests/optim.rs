//! Every optimizer against a reference: twenty steps with given gradients (golden/optim), and what its settings do to
//! a run.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::TypeId;
use planish_compute::{Backend, CpuBackend, Isa, View};
use planish_model::{AdapterSet, AdapterSpec, ROLES, Trainable};
use planish_tape::Param;
use planish_text::Example;
use planish_train::optim::{Class, OptimSettings, OptimState, Target, of};
use planish_train::{OPTIMS, Optim, Trainer};
use serde::Deserialize;

const STEPS: u64 = 20;
const TENSORS: [(&str, usize, usize, Class); 4] = [
    ("matrix", 24, 40, Class::Map),
    ("tall", 12, 8, Class::Map),
    ("table", 6, 8, Class::Table),
    ("vector", 1, 40, Class::Map),
];

#[derive(Deserialize)]
struct Case {
    optimizer: String,
    settings: Settings,
    lr: f64,
    tensors: BTreeMap<String, Vec<f64>>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    nesterov: bool,
}

/// As in the script.
fn noise(i: usize, stream: u32) -> f64 {
    let mut x = (i as u32).wrapping_mul(0x9e37_79b1).wrapping_add(stream.wrapping_mul(0x85eb_ca77));
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^= x >> 16;
    f64::from(x) / 2_147_483_648.0 - 1.0
}

fn start(k: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (0.5 * noise(i, k as u32)) as f32).collect()
}

fn gradient(k: usize, n: usize, t: u64) -> Vec<f32> {
    let k = k as u32;
    (0..n).map(|i| (0.1 * (noise(i, 100 + 10 * t as u32 + k) + noise(i, 50 + k))) as f32).collect()
}

/// The four tensors after twenty steps.
fn steps(case: &Case, optim: &'static Optim, threads: usize) -> Vec<Vec<f32>> {
    steps_at(case, optim, threads, case.lr, [1.0; TENSORS.len()])
}

/// With this highest learning rate, and multiples of it for the tensors.
fn steps_at(
    case: &Case,
    optim: &'static Optim,
    threads: usize,
    lr: f64,
    rates: [f32; TENSORS.len()],
) -> Vec<Vec<f32>> {
    let mut backend = CpuBackend::new(Isa::detect(), threads).unwrap();
    let mut view = |rows: usize, cols: usize| {
        View::new(backend.alloc((rows * cols * 4) as u64).unwrap(), 0, rows, cols, TypeId::F32)
    };
    let target = |((name, rows, cols, class), rate): ((&str, usize, usize, Class), f32)| {
        let param = Param { view: view(rows, cols), grad: Some(view(rows, cols)) };
        Target { name: name.into(), param, class, weight_decay: 0.1, rate }
    };
    let targets: Vec<Target> = TENSORS.into_iter().zip(rates).map(target).collect();
    let settings = OptimSettings { nesterov: case.settings.nesterov, ..optim.usual };
    let state = OptimState::new(&mut backend, optim, settings, &targets).unwrap();
    for (k, t) in targets.iter().enumerate() {
        backend.upload_f32(&t.param.view, &start(k, t.param.view.elements()));
    }
    for t in 1..=STEPS {
        let lr = lr * (t as f64 / 5.0).min(1.0);
        state.begin(&mut backend, lr, t);
        for (k, target) in targets.iter().enumerate() {
            backend.upload_f32(&target.param.grad.unwrap(), &gradient(k, target.param.view.elements(), t));
        }
        state.step(&mut backend, lr, t, if t % 2 == 1 { 0.5 } else { 1.0 }).unwrap();
    }
    targets.iter().map(|t| backend.download_f32(&t.param.view)).collect()
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/optim/expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The error is relative to how far the tensor has come.
#[test]
fn every_optimizer_agrees_with_its_reference() {
    let cases = cases();
    for optim in OPTIMS {
        assert!(cases.iter().any(|c| c.optimizer == optim.name), "golden/optim has no {}", optim.name);
    }
    for case in &cases {
        let got = steps(case, of(&case.optimizer).unwrap(), 2);
        for (k, (name, ..)) in TENSORS.iter().enumerate() {
            let want = &case.tensors[*name];
            let begin = start(k, want.len());
            let norm = |from: &[f32]| {
                from.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt()
            };
            let error = norm(&got[k]) / norm(&begin);
            eprintln!("{} {name}: {error:e} of the way {:.3}", case.optimizer, norm(&begin));
            assert!(error <= 1e-4, "{} {name}: off by {error:e} of its way", case.optimizer);
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for case in &cases() {
        let optim = of(&case.optimizer).unwrap();
        let one = steps(case, optim, 1);
        assert!((2..=3).all(|threads| steps(case, optim, threads) == one), "{}", case.optimizer);
    }
}

/// As a group of parameters with its own rate in PyTorch: a tensor at four times the rate has the bits of a run at four
/// times the rate, whatever its neighbours have.
#[test]
fn a_tensor_may_have_its_own_learning_rate() {
    for case in &cases() {
        let optim = of(&case.optimizer).unwrap();
        let [once, fourfold] = [1.0, 4.0].map(|factor| steps_at(case, optim, 2, factor * case.lr, [1.0; 4]));
        let mixed = steps_at(case, optim, 2, case.lr, [4.0, 1.0, 1.0, 4.0]);
        let name = &case.optimizer;
        assert!(once.iter().zip(&fourfold).all(|(a, b)| a != b), "{name}: the rate must matter");
        for (k, want) in [&fourfold[0], &once[1], &once[2], &fourfold[3]].into_iter().enumerate() {
            assert!(mixed[k] == *want, "{name}: {}", TENSORS[k].0);
        }
    }
}

/// Trains an adapter on the tiny model for 200 steps and gives the losses.
fn trained(optim: &'static Optim, lr: f64) -> Vec<f64> {
    let dir = tempfile::TempDir::new().unwrap();
    let model = dir.path().join("tiny.gguf");
    common::write_model(&model, TypeId::Q8_0);
    let mut engine = common::engine(&model, Trainable::Nothing, 1);
    let adapter = AdapterSpec {
        rank: 8,
        alpha: 16.0,
        rslora: false,
        targets: ROLES.to_vec(),
        dropout: 0.0,
        ..AdapterSpec::default()
    };
    let spec = engine.model.spec.clone();
    let set = AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter, 3).unwrap();
    let params = set.pairs().flat_map(|(_, p)| [p.a, p.b]);
    let target = |(i, param): (usize, Param)| Target {
        name: i.to_string(),
        param,
        class: Class::Map,
        weight_decay: 0.01,
        rate: 1.0,
    };
    let targets: Vec<Target> = params.enumerate().map(target).collect();
    let state = OptimState::new(&mut engine.backend, optim, optim.usual, &targets).unwrap();
    let mut trainer = Trainer::new(&mut engine, targets, state, 1.0, 4).unwrap();
    let data = common::examples(9);
    let step = |s: usize| {
        let examples: Vec<&Example> = (0..4).map(|i| &data[(4 * s + i) % 9]).collect();
        trainer.step(&mut engine, &[&set], &examples, s, lr, 3).unwrap().loss
    };
    (0..200).map(step).collect()
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

#[test]
fn moments_of_8_bits_train_like_those_of_32() {
    let [want, got] = ["adamw", "adamw8"].map(|name| trained(of(name).unwrap(), 5e-4));
    let (want, got, first) = (mean(&want[180..]), mean(&got[180..]), want[0]);
    eprintln!("from {first:.4}; mean of the last 20 losses: {want:.5} with 32 bits, {got:.5} with 8");
    assert!((got / want - 1.0).abs() <= 0.01, "{got} with 8 bits, {want} with 32");
    assert!(want < 0.5 * first, "nothing was learnt: {first} to {want}");
}
