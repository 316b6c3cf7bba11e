//! Runs that train the weights themselves: all of any type, or those that patterns choose.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::path::{Path, PathBuf};

use planish_base::{CancelToken, Kind, Result, TypeId};
use planish_compute::Backend;
use planish_compute::quant::{QUANTS, Quant};
use planish_model::Trainable;
use planish_store::gguf::{Gguf, OwnedValue, Writer};
use planish_store::safetensors::SafeTensors;
use planish_text::Example;
use planish_train::optim::{Class, OptimState, Target, of};
use planish_train::{
    EvalSplit, OPTIMS, Observer, Plan, Resumed, RunConfig, Start, StepReport, Trainer, Tuned, tune,
};
use tempfile::TempDir;

/// Sees plan and losses; cancels after a step.
#[derive(Default)]
struct Watcher {
    cancel_after: Option<usize>,
    cancel: CancelToken,
    plan: Plan,
    losses: Vec<u64>,
}

impl Observer for Watcher {
    fn plan(&mut self, plan: &Plan) {
        self.plan = plan.clone();
    }

    fn step(&mut self, step: usize, _: usize, report: &StepReport) {
        self.losses.push(report.loss.to_bits());
        if self.cancel_after == Some(step) {
            self.cancel.cancel();
        }
    }
}

/// A folder with the tiny model, data, and runs.
struct Place {
    dir: TempDir,
    config: RunConfig,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        common::write_model(&dir.path().join("tiny.gguf"), TypeId::Q8_0);
        common::write_data(&dir.path().join("data.jsonl"), &common::examples(11));
        let config = RunConfig {
            base: dir.path().join("tiny.gguf"),
            data: vec![dir.path().join("data.jsonl")],
            eval_split: EvalSplit::Count(2),
            full: true,
            steps: Some(6),
            lr: Some(5e-3),
            save_every: Some(2),
            ..RunConfig::default()
        };
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, name: &str, watcher: &mut Watcher) -> Result<Tuned> {
        let cancel = watcher.cancel.clone();
        tune(&self.config, Start::New { out: self.path(name), run_id: name.into() }, &cancel, watcher)
    }

    fn resume(&self, name: &str) -> Tuned {
        let run = Box::new(Resumed::open(&self.path(name)).unwrap());
        let start = Start::Resume { run, allow: Vec::new() };
        tune(&self.config, start, &CancelToken::new(), &mut Watcher::default()).unwrap()
    }

    /// A run that was stopped after `step` and gone on with.
    fn stopped_and_resumed(&self, name: &str, step: usize) -> Tuned {
        let mut watcher = Watcher { cancel_after: Some(step), ..Watcher::default() };
        self.start(name, &mut watcher).unwrap();
        self.resume(name)
    }
}

fn tensors(path: &Path) -> Vec<(String, TypeId, Vec<u8>)> {
    let gguf = Gguf::open(path).unwrap();
    let tensors = gguf.tensors().iter();
    tensors.map(|t| (t.name.clone(), t.ty, gguf.data(t).to_vec())).collect()
}

/// What a pattern freezes keeps type and bytes, in memory and in the file; the rest is trained.
#[test]
fn frozen_tensors_keep_their_bytes() {
    let mut place = Place::new();
    let mut all = Watcher::default();
    place.start("all", &mut all).unwrap();
    let base = tensors(&place.config.base);
    let values = |of: &dyn Fn(&str) -> bool| -> u64 {
        let gguf = Gguf::open(&place.config.base).unwrap();
        gguf.tensors().iter().filter(|t| of(&t.name)).map(|t| t.dims.iter().product::<u64>()).sum()
    };
    let bytes = |of: &dyn Fn(&str) -> bool| -> u64 {
        base.iter().filter(|(name, ..)| of(name)).map(|(.., data)| data.len() as u64).sum()
    };
    type Case = (&'static [&'static str], &'static [&'static str], fn(&str) -> bool);
    let cases: [Case; 4] = [
        // A tied embedding is the head too, and then neither is trained.
        (&["token_embd.*"], &[], |n| n != "token_embd.weight"),
        (&["*norm*", "blk.0.*"], &[], |n| !n.contains("norm") && !n.starts_with("blk.0.")),
        (&[], &["blk.1.ffn_*"], |n| n.starts_with("blk.1.ffn_")),
        (&["*_norm.weight"], &["blk.1.*"], |n| n.starts_with("blk.1.") && !n.ends_with("_norm.weight")),
    ];
    for (i, (freeze, train, trained)) in cases.into_iter().enumerate() {
        let owned = |patterns: &[&str]| patterns.iter().map(|p| (*p).to_string()).collect::<Vec<_>>();
        (place.config.freeze, place.config.train) = (owned(freeze), owned(train));
        let mut watcher = Watcher::default();
        let tuned = place.start(&format!("run {i}"), &mut watcher).unwrap();
        // The forward pass is the same, from the bytes as from the masters.
        assert_eq!(watcher.losses[0], all.losses[0]);
        assert_ne!(watcher.losses[5], all.losses[5]);
        let written = tensors(&tuned.weights.unwrap());
        assert_eq!(written.len(), base.len());
        for ((name, ty, data), (_, old_ty, old)) in written.iter().zip(&base) {
            match trained(name) {
                true => assert!(*ty == TypeId::F32 && data != old, "{name}"),
                false => assert!(ty == old_ty && data == old, "{name}"),
            }
        }
        let m = watcher.plan.memory;
        assert_eq!(watcher.plan.trained_parameters, values(&trained));
        assert_eq!((m.trained_bytes, m.gradients_bytes), (4 * values(&trained), 4 * values(&trained)));
        assert_eq!((m.slots_bytes, m.weights_bytes), (8 * values(&trained), bytes(&|n| !trained(n))));
        let checkpoint = place.path(&format!("run {i}/checkpoints/step_6/weights.safetensors"));
        let names: Vec<String> =
            SafeTensors::open(&checkpoint).unwrap().names().map(str::to_string).collect();
        assert!(names.iter().all(|n| trained(n)), "{names:?}");
        let resumed = place.stopped_and_resumed(&format!("again {i}"), 3);
        assert!(tensors(&resumed.weights.unwrap()) == written);
    }
    assert_eq!((all.plan.memory.weights_bytes, all.plan.trained_parameters), (0, values(&|_| true)));
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    let mut place = Place::new();
    let refused = |place: &Place| {
        let error = place.start("run", &mut Watcher::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        format!("{error}; {}", error.hint().unwrap_or_default())
    };
    place.config.freeze = vec!["*norm*".into(), "blk.0.atn_q.weight".into()];
    let message = refused(&place);
    assert!(message.contains("freeze is `blk.0.atn_q.weight`, which is the name of no tensor"), "{message}");
    assert!(message.contains("near it are blk.0.attn_q.weight, "), "{message}");
    (place.config.freeze, place.config.train) = (Vec::new(), vec!["model.norm".into()]);
    assert!(refused(&place).contains("train is `model.norm`"));
    (place.config.freeze, place.config.train) = (vec!["*".into()], vec!["*norm*".into()]);
    assert!(refused(&place).contains("leave no tensor to train"));
    (place.config.freeze, place.config.full) = (vec!["*norm*".into()], false);
    assert!(refused(&place).contains("freeze chooses among the model's own weights"));
}

/// A file of golden/quants.
fn golden(ty: TypeId, part: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/quants");
    std::fs::read(dir.join(format!("{}.{part}.bin", ty.name()))).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The golden blocks of a type whose values could be weights, and these values as the `gguf` Python package decodes
/// them.
fn blocks(quant: &Quant) -> Vec<(Vec<u8>, Vec<f32>)> {
    if quant.id == TypeId::F32 {
        return (1..40u8).map(|i| f32::from(i) / 16.0).map(|v| (v.to_le_bytes().to_vec(), vec![v])).collect();
    }
    let (raw, values) = (golden(quant.id, "raw"), floats(&golden(quant.id, "values")));
    let pairs = raw.chunks_exact(quant.block_bytes()).zip(values.chunks_exact(quant.block()));
    let largest =
        |v: &[f32]| v.iter().fold(0f32, |m, x| if x.is_finite() { m.max(x.abs()) } else { f32::MAX });
    let sound = pairs.filter(|(_, v)| (0.01..=4.0).contains(&largest(v)));
    sound.map(|(raw, v)| (raw.to_vec(), v.to_vec())).collect()
}

/// A llama of one block, 256 wide, whose matrices are golden blocks of a type, and the same in F32.
fn write_blocks(quant: &Quant, typed: &Path, decoded: &Path) {
    const WIDTH: u64 = 256;
    let mut shapes: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![WIDTH, common::VOCAB]),
        ("output_norm.weight".into(), vec![WIDTH]),
    ];
    for (name, rows) in
        [("attn_norm", 0), ("attn_q", 256), ("attn_k", 128), ("attn_v", 128), ("attn_output", 256)]
    {
        shapes
            .push((format!("blk.0.{name}.weight"), if rows == 0 { vec![WIDTH] } else { vec![WIDTH, rows] }));
    }
    for (name, rows) in [("ffn_norm", 0), ("ffn_gate", 256), ("ffn_up", 256), ("ffn_down", 256)] {
        shapes
            .push((format!("blk.0.{name}.weight"), if rows == 0 { vec![WIDTH] } else { vec![WIDTH, rows] }));
    }
    let blocks = blocks(quant);
    assert!(blocks.len() >= 3, "{}", quant.id.name());
    for (path, as_values) in [(typed, false), (decoded, true)] {
        let mut w = Writer::new();
        w.set("general.architecture", "llama".into());
        for (key, value) in [
            ("context_length", 64),
            ("embedding_length", WIDTH as u32),
            ("block_count", 1),
            ("feed_forward_length", WIDTH as u32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ] {
            w.set(&format!("llama.{key}"), OwnedValue::U32(value));
        }
        w.set("llama.attention.layer_norm_rms_epsilon", OwnedValue::F32(1e-5));
        for (name, dims) in &shapes {
            let ty = if dims.len() == 1 || as_values { TypeId::F32 } else { quant.id };
            w.tensor(name, dims, ty).unwrap();
        }
        w.write(path, |i, sink| {
            let dims = &shapes[i].1;
            if dims.len() == 1 {
                sink.write_all(&1f32.to_le_bytes().repeat(WIDTH as usize)).unwrap();
                return Ok(());
            }
            for j in 0..(dims[0] * dims[1]) as usize / quant.block() {
                let (raw, values) = &blocks[(7 * j + j / 5 + i) % blocks.len()];
                let decoded = || values.iter().flat_map(|v| v.to_le_bytes()).collect();
                sink.write_all(&if as_values { decoded() } else { raw.clone() }).unwrap();
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Every type that planish reads: training starts from exactly the values that its bytes mean, and takes the steps that
/// it takes from these values in F32.
#[test]
fn weights_of_every_type_are_trained_from_their_values() {
    let dir = TempDir::new().unwrap();
    let (typed, decoded) = (dir.path().join("typed.gguf"), dir.path().join("decoded.gguf"));
    for quant in QUANTS {
        let ty = quant.id.name();
        write_blocks(quant, &typed, &decoded);
        let trained = two_steps(&typed);
        assert!(trained == two_steps(&decoded), "{ty}");
        for (name, _, values) in tensors(&decoded) {
            let (_, first, last) = trained.iter().find(|t| t.0 == name).unwrap();
            let values: Vec<u32> = floats(&values).into_iter().map(f32::to_bits).collect();
            assert!(*first == values, "{ty}: {name} does not start from its values");
            assert!(last != first, "{ty}: {name} is not trained");
        }
    }
}

/// Name, bits before and bits after of every tensor.
fn two_steps(path: &Path) -> Vec<(String, Vec<u32>, Vec<u32>)> {
    let mut engine = common::engine(path, Trainable::Everything, 1);
    let target = |n: &planish_model::Named| Target {
        name: n.name.clone(),
        param: n.param,
        class: Class::Map,
        weight_decay: 0.0,
        rate: 1.0,
    };
    let targets: Vec<Target> = engine.params.trainable().map(target).collect();
    let adamw = of("adamw").unwrap();
    let state = OptimState::new(&mut engine.backend, adamw, adamw.usual, &targets).unwrap();
    let mut trainer = Trainer::new(&mut engine, targets, state, 1.0, 2).unwrap();
    let bits = |engine: &planish_engine::Engine, trainer: &Trainer| -> Vec<Vec<u32>> {
        let values = trainer.weights().into_iter().map(|(_, v)| engine.backend.download_f32(&v));
        values.map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
    };
    let before = bits(&engine, &trainer);
    let data = common::examples(4);
    let examples: Vec<&Example> = data.iter().collect();
    for step in 0..2 {
        trainer.step(&mut engine, &[], &examples, step, 1e-3, 0).unwrap();
    }
    let after = bits(&engine, &trainer);
    let names = trainer.weights().into_iter().map(|(name, _)| name);
    names.zip(before).zip(after).map(|((name, before), after)| (name, before, after)).collect()
}

/// The tensors of a file of a checkpoint.
fn saved(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = SafeTensors::open(path).unwrap();
    file.names().map(|name| (name.to_string(), floats(file.get(name).unwrap().data))).collect()
}

/// The average is that of the weights of all steps, computed here in double precision from their checkpoints.
#[test]
fn the_average_is_that_of_the_steps() {
    for (full, optimizer) in [(true, "adamw"), (false, "adamw"), (true, "schedule-free")] {
        let mut place = Place::new();
        (place.config.full, place.config.optimizer) = (full, optimizer.into());
        let plain = place.start("plain", &mut Watcher::default()).unwrap();
        let decay = 0.8;
        let config = RunConfig { ema: Some(decay), save_every: Some(1), keep: 10, ..place.config.clone() };
        place.config = config;
        let mut watcher = Watcher::default();
        let tuned = place.start("run", &mut watcher).unwrap();
        let m = watcher.plan.memory;
        assert_eq!(m.average_bytes, m.trained_bytes);
        // Watching changes nothing.
        let weights = tuned.weights.unwrap();
        assert!(std::fs::read(&weights).unwrap() == std::fs::read(plain.weights.unwrap()).unwrap());
        let step = |n: usize, file: &str| {
            saved(&place.path(&format!("run/checkpoints/step_{n}/{file}.safetensors")))
        };
        let mut want: Vec<Vec<f64>> = Vec::new();
        for n in 1..=6 {
            let now =
                step(n, "weights").into_iter().map(|(_, v)| v.into_iter().map(f64::from).collect::<Vec<_>>());
            want = match n {
                1 => now.collect(),
                _ => {
                    let mean = |a: Vec<f64>, w: Vec<f64>| {
                        a.iter().zip(w).map(|(a, w)| decay * a + (1.0 - decay) * w).collect()
                    };
                    want.into_iter().zip(now).map(|(a, w)| mean(a, w)).collect()
                }
            };
            // Each step rounds twice, relative to the largest value.
            for ((name, got), want) in step(n, "average").iter().zip(&want) {
                let size = want.iter().fold(0f64, |m, x| m.max(x.abs()));
                let worst = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
                assert!(worst <= 1e-6 * size, "{name}: {worst:e} of {size}");
            }
        }
        let average = place.path("run/weights/ema.gguf");
        assert!(tensors(&average) != tensors(&weights));
        if full {
            let last = step(6, "average");
            for (name, _, data) in tensors(&average) {
                assert!(floats(&data) == last.iter().find(|t| t.0 == name).unwrap().1, "{name}");
            }
        }
        place.stopped_and_resumed("again", 3);
        let again = place.path("again/weights/ema.gguf");
        assert!(std::fs::read(again).unwrap() == std::fs::read(&average).unwrap());
    }
}

#[test]
fn an_average_that_cannot_be_is_refused() {
    let mut place = Place::new();
    for decay in [0.0, 1.0, f64::NAN] {
        place.config.ema = Some(decay);
        let error = place.start("run", &mut Watcher::default()).unwrap_err();
        assert!(error.to_string().contains("expected between 0 and 1"), "{error}");
    }
    // A run that has kept none cannot begin to.
    place.config.ema = None;
    let mut watcher = Watcher { cancel_after: Some(3), ..Watcher::default() };
    place.start("run", &mut watcher).unwrap();
    let config = RunConfig { ema: Some(0.9), ..place.config.clone() };
    let run = Box::new(Resumed::open(&place.path("run")).unwrap());
    let start = Start::Resume { run, allow: vec!["ema".into()] };
    let error = tune(&config, start, &CancelToken::new(), &mut Watcher::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

/// Resuming is the same run for every optimizer when some tensors are frozen.
/// A factor of 0 keeps a tensor where it was; one of 1 changes nothing, also beside others.
#[test]
fn rates_by_name() {
    let mut place = Place::new();
    let plain = place.start("plain", &mut Watcher::default()).unwrap().weights.unwrap();
    place.config.lr_groups = [("*_norm.weight".into(), 0.0), ("blk.1.*".into(), 1.0)].into();
    let first = RunConfig { steps: Some(1), ..place.config.clone() };
    let slow = place.start("slow", &mut Watcher::default()).unwrap().weights.unwrap();
    place.config = first;
    let once = place.start("once", &mut Watcher::default()).unwrap().weights.unwrap();
    for ((name, _, slow), (_, _, once)) in tensors(&slow).iter().zip(&tensors(&once)) {
        assert_eq!(slow == once, name.ends_with("_norm.weight"), "{name}");
    }
    assert!(tensors(&plain) != tensors(&slow));
    place.config.lr_groups = [("*.nothing".into(), 0.5)].into();
    let error = place.start("none", &mut Watcher::default()).unwrap_err();
    assert!(error.to_string().contains("lr-groups is `*.nothing`"), "{error}");
}

#[test]
fn every_optimizer_trains_a_part() {
    for optim in OPTIMS {
        let mut place = Place::new();
        place.config.optimizer = optim.name.into();
        place.config.freeze = vec!["token_embd.*".into()];
        let whole = place.start("a", &mut Watcher::default()).unwrap();
        let resumed = place.stopped_and_resumed("b", 3);
        assert!(tensors(&whole.weights.unwrap()) == tensors(&resumed.weights.unwrap()), "{}", optim.name);
    }
}
