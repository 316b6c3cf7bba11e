//! A resumed run is the run that was never interrupted, for every optimizer and recipe.
//!
//! Three ways through the same steps: A without interruption, B stopped and resumed twice, C from the weights of the
//! checkpoint alone. A == B bit for bit shows that everything was saved, A != C that it had to be: a restore that
//! silently drops the optimizer's state passes any test that looks at the loss only.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::path::{Path, PathBuf};

use planish_base::TypeId;
use planish_compute::Backend;
use planish_compute::call::AdamW;
use planish_engine::Engine;
use planish_model::{AdapterSet, AdapterSpec, ROLES, Trainable};
use planish_text::Example;
use planish_train::optim::{Class, OptimSettings, OptimState, Slot, Target};
use planish_train::{Checkpoint, Identity, OPTIMS, Optim, RunConfig, State, Trainer};
use tempfile::TempDir;

const STEPS: usize = 12;
/// Where B stops.
const STOPS: [usize; 2] = [5, 8];

/// A trainer on the tiny model.
struct Run {
    engine: Engine,
    set: Option<AdapterSet>,
    trainer: Trainer,
    data: Vec<Example>,
}

impl Run {
    fn new(model: &Path, optim: &'static Optim, full: bool) -> Run {
        let trainable = if full { Trainable::Everything } else { Trainable::Nothing };
        let mut engine = common::engine(model, trainable, 1);
        let adapter = AdapterSpec {
            rank: 4,
            alpha: 8.0,
            rslora: false,
            targets: ROLES.to_vec(),
            dropout: 0.1,
            ..AdapterSpec::default()
        };
        let spec = engine.model.spec.clone();
        let set = (!full)
            .then(|| AdapterSet::init(&mut engine.backend, &spec, &engine.params, &adapter, 3).unwrap());
        let target = |name: String, param| {
            let class = if name.starts_with("token_embd") { Class::Table } else { Class::Map };
            Target { name, param, class, weight_decay: 0.01, rate: 1.0 }
        };
        let targets: Vec<Target> = match &set {
            Some(set) => set
                .pairs()
                .flat_map(|(id, p)| [(id, "a", p.a), (id, "b", p.b)])
                .map(|(id, half, p)| target(format!("{}.{}.{half}", id.layer, id.role.name()), p))
                .collect(),
            None => engine.params.trainable().map(|n| target(n.name.clone(), n.param)).collect(),
        };
        let state = OptimState::new(&mut engine.backend, optim, optim.usual, &targets).unwrap();
        let trainer = Trainer::new(&mut engine, targets, state, 1.0, 2).unwrap();
        Run { engine, set, trainer, data: common::examples(9) }
    }

    fn steps(&mut self, range: std::ops::Range<usize>) {
        let adapters: Vec<&AdapterSet> = self.set.iter().collect();
        for s in range {
            let examples: Vec<&Example> = (0..4).map(|i| &self.data[(4 * s + i) % 9]).collect();
            self.trainer.step(&mut self.engine, &adapters, &examples, s, 1e-2, 3).unwrap();
        }
    }

    fn save(&self, path: &Path, step: usize) {
        let state = State { step, updates: self.trainer.updates(), ..State::default() };
        let identity = Identity { base: "tiny".into(), ..Identity::default() };
        let config = RunConfig::default();
        Checkpoint::save(path, &self.engine, &self.trainer, &config, &state, &identity).unwrap();
    }

    fn bits(&self) -> Vec<u32> {
        let values = self.trainer.weights().into_iter().map(|(_, v)| self.engine.backend.download_f32(&v));
        values.flatten().map(f32::to_bits).collect()
    }
}

/// Checks one optimizer and recipe.
fn three_ways(optim: &'static Optim, full: bool) {
    let cell = format!("{} {}", optim.name, if full { "full" } else { "lora" });
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("tiny.gguf");
    common::write_model(&model, TypeId::Q4_1);
    let path = |step: usize| -> PathBuf { dir.path().join(format!("step_{step}")) };

    let mut a = Run::new(&model, optim, full);
    a.steps(0..STEPS);

    let mut first = Run::new(&model, optim, full);
    first.steps(0..STOPS[0]);
    first.save(&path(STOPS[0]), STOPS[0]);
    // What comes after the checkpoint is lost with the process.
    first.steps(STOPS[0]..STOPS[0] + 2);
    let resumed = |step: usize| {
        let mut run = Run::new(&model, optim, full);
        let checkpoint = Checkpoint::open(&path(step)).unwrap();
        checkpoint.restore(&mut run.engine, &mut run.trainer).unwrap();
        assert_eq!(checkpoint.state.step, step);
        run
    };
    let mut second = resumed(STOPS[0]);
    second.steps(STOPS[0]..STOPS[1]);
    second.save(&path(STOPS[1]), STOPS[1]);
    let mut b = resumed(STOPS[1]);
    b.steps(STOPS[1]..STEPS);
    assert!(a.bits() == b.bits(), "{cell}: the resumed run has other weights");

    let saved = resumed(STOPS[0]);
    let mut c = Run::new(&model, optim, full);
    for ((_, from), (_, to)) in saved.trainer.weights().iter().zip(c.trainer.weights()) {
        let values = saved.engine.backend.download_f32(from);
        c.engine.backend.upload_f32(&to, &values);
    }
    c.trainer.set_updates(saved.trainer.updates());
    c.steps(STOPS[0]..STEPS);
    assert!(a.bits() != c.bits(), "{cell}: its state does not matter, so this shows nothing");
}

#[test]
fn every_optimizer_resumes_bit_for_bit_with_an_adapter_on_a_quantised_base() {
    OPTIMS.iter().for_each(|o| three_ways(o, false));
}

#[test]
fn every_optimizer_resumes_bit_for_bit_with_all_weights() {
    OPTIMS.iter().for_each(|o| three_ways(o, true));
}

/// An optimizer that is in no table: one slot that is an average, one that is not used.
static MOMENTUM: Optim = Optim {
    name: "momentum",
    uses: &[],
    usual: OptimSettings::USUAL,
    rate: 1.0,
    slots: |t| ["average", "unused"].map(|name| Slot::vector(name, t.elements())).to_vec(),
    hyper: |_, lr, _, clip| [lr, 0.9, 0.1, 1.0, 0.0, 1.0, 1.0, 1.0, clip].map(|x| x as f32).to_vec(),
    step: |tape, t, hyper| {
        let (m, v) = (t.slots[0], t.slots[1]);
        tape.call(AdamW { grad: t.grad, hyper, param: t.param, m, v, weight_decay: t.weight_decay });
    },
    detour: None,
};

/// Nothing here or in the checkpoint names an optimizer: a new line of OPTIMS is tested and saved by its slots.
#[test]
fn an_optimizer_joins_by_its_declaration_alone() {
    three_ways(&MOMENTUM, false);
    three_ways(&MOMENTUM, true);
}

/// Of a matrix of n elements AdamW has 8 n bytes, with moments of 8 bits 2 n and 8 for each 256 elements; in memory and
/// in the checkpoint. Vectors have 8 n either way.
#[test]
fn moments_of_8_bits_take_a_quarter() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("tiny.gguf");
    common::write_model(&model, TypeId::Q8_0);
    let bytes = |name: &str| {
        let mut run = Run::new(&model, planish_train::optim::of(name).unwrap(), true);
        run.steps(0..1);
        run.save(&dir.path().join(name), 1);
        let file = dir.path().join(name).join("optimizer.safetensors");
        (run.trainer.slot_bytes(), std::fs::metadata(file).unwrap().len())
    };
    let ((many, long), (few, short)) = (bytes("adamw"), bytes("adamw8"));
    let (vectors, matrices) = (5 * 32, 64 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64));
    assert_eq!((many, few), (8 * (vectors + matrices), 8 * vectors + 2 * matrices + 8 * matrices / 256));
    // Each slot has a line of some hundred bytes.
    assert!((many..many + 6_000).contains(&long) && (few..few + 12_000).contains(&short), "{long} {short}");
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("tiny.gguf");
    common::write_model(&model, TypeId::Q8_0);
    let run = Run::new(&model, &OPTIMS[0], false);
    run.save(&dir.path().join("step_1"), 1);
    let checkpoint = Checkpoint::open(&dir.path().join("step_1")).unwrap();
    let mut other = Run::new(&model, &OPTIMS[0], true);
    let error = checkpoint.restore(&mut other.engine, &mut other.trainer).unwrap_err();
    assert_eq!(error.code(), "checkpoint");
    assert!(error.to_string().contains("weights.safetensors: 28 tensors, the run has 20"), "{error}");
}
