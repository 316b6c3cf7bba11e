//! What a run trains on: packs equal to the same examples apart, corpora of tokens over several epochs, the cache.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

mod common;

use std::path::{Path, PathBuf};

use planish_base::{CancelToken, TypeId};
use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::Trainable;
use planish_text::{Example, LengthPolicy};
use planish_train::optim::{Class, OptimState, Target, of};
use planish_train::plan::Packed;
use planish_train::{
    EvalSplit, Observer, Plan, Resumed, RunConfig, Sequence, Start, StepReport, Trainer, tune,
};
use tempfile::TempDir;

/// A trainer of all weights of a tiny model with numbers by PyTorch.
struct Full {
    engine: Engine,
    trainer: Trainer,
}

impl Full {
    fn new(optimizer: &str, micro_batch: usize) -> Full {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/llama/tied_gqa");
        let options = EngineOptions {
            threads: 2,
            isa: Isa::detect(),
            context: 64,
            tokens: 256,
            trainable: Trainable::Everything,
            recompute: false,
            precision: Precision::F32,
        };
        let mut engine = Engine::new(Model::open(&path).unwrap(), options).unwrap();
        let target = |name: &str, param| Target {
            name: name.into(),
            param,
            class: Class::Map,
            weight_decay: 0.0,
            rate: 1.0,
        };
        let targets: Vec<Target> = engine.params.trainable().map(|n| target(&n.name, n.param)).collect();
        let optim = of(optimizer).unwrap();
        let state = OptimState::new(&mut engine.backend, optim, optim.usual, &targets).unwrap();
        let trainer = Trainer::new(&mut engine, targets, state, 1.0, micro_batch).unwrap();
        Full { engine, trainer }
    }

    /// Mean loss, and all gradients one after the other.
    fn gradients<'a, S: Sequence<'a>>(&mut self, sequences: &[S]) -> (f64, Vec<f32>) {
        let g = self.trainer.gradients(&mut self.engine, &[], sequences, 0, 0).unwrap();
        let grads =
            self.trainer.targets().iter().map(|t| self.engine.backend.download_f32(&t.param.grad.unwrap()));
        (g.loss_sum / g.trained as f64, grads.flatten().collect())
    }

    fn step<'a, S: Sequence<'a>>(&mut self, sequences: &[S], step: usize) -> f64 {
        self.trainer.step(&mut self.engine, &[], sequences, step, 0.1, 0).unwrap().loss
    }
}

/// Ragged examples of which only some tokens are trained.
fn ragged() -> Vec<Example> {
    let lengths = [24, 5, 17, 2, 31, 9, 12, 3, 20, 7];
    let make = |(i, n): (usize, &usize)| {
        let ids = (0..*n).map(|j| ((i * 31 + j * 17) % 96) as u32).collect();
        let trained = (0..*n).map(|j| j > 0 && (j + i) % 3 != 0 || j == 1).collect();
        Example { ids, trained, place: format!("test:{}", i + 1) }
    };
    lengths.iter().enumerate().map(make).collect()
}

fn packs(examples: &[Example], context: usize) -> Vec<Vec<&Example>> {
    let lengths: Vec<usize> = examples.iter().map(|e| e.ids.len()).collect();
    let packs = planish_text::pack(&lengths, context);
    packs.into_iter().map(|p| p.into_iter().map(|i| &examples[i]).collect()).collect()
}

fn relative(a: f64, b: f64) -> f64 {
    ((a - b) / b).abs()
}

/// Difference of two lists by the norm of the second.
fn relative_norm(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn a_pack_is_its_examples() {
    let data = ragged();
    let apart: Vec<&Example> = data[..3].iter().collect();
    let (loss, gradients) = Full::new("sgd", 1).gradients(&apart);
    let (packed_loss, packed) = Full::new("sgd", 1).gradients(&[apart]);
    let (by_loss, by_norm) = (relative(packed_loss, loss), relative_norm(&packed, &gradients));
    eprintln!("pack of three against three: loss {by_loss:e}, gradients {by_norm:e}");
    assert!(by_loss <= 1e-6 && by_norm <= 1e-5);
    // They would differ if the examples saw each other: the same tokens as one sequence do.
    let mut one = Example { ids: Vec::new(), trained: Vec::new(), place: "joined".into() };
    for e in &data[..3] {
        one.ids.extend(&e.ids);
        one.trained.extend(&e.trained);
    }
    let (joined_loss, joined) = Full::new("sgd", 1).gradients(&[&one]);
    assert!(relative(joined_loss, loss) > 1e-3 && relative_norm(&joined, &gradients) > 1e-2);
}

/// Steps of four packs, one in memory at a time, against steps of the same examples, two at a time.
#[test]
fn a_packed_run_is_the_run() {
    let data = ragged();
    let packs = packs(&data, 40);
    assert!(packs.len() == 4 && packs.iter().all(|p| p.len() > 1), "{packs:?}");
    let apart: Vec<&Example> = packs.concat();
    let (mut packed, mut plain) = (Full::new("sgd", 1), Full::new("sgd", 2));
    let mut losses = Vec::new();
    for s in 0..8 {
        let (a, b) = (packed.step(&packs, s), plain.step(&apart, s));
        assert!(relative(a, b) <= 1e-6, "step {s}: {a} {b}");
        losses.push(b);
    }
    assert!(losses[7] < 0.9 * losses[0], "{losses:?}");
}

#[derive(Default)]
struct Watcher {
    plan: Plan,
    losses: Vec<u64>,
    tokens: Vec<usize>,
    warnings: Vec<String>,
    cancel_after: Option<usize>,
    cancel: CancelToken,
}

impl Observer for Watcher {
    fn plan(&mut self, plan: &Plan) {
        self.plan = plan.clone();
    }

    fn step(&mut self, step: usize, _: usize, report: &StepReport) {
        self.losses.push(report.loss.to_bits());
        self.tokens.push(report.tokens);
        if self.cancel_after == Some(step) {
            self.cancel.cancel();
        }
    }

    fn warning(&mut self, text: &str) {
        self.warnings.push(text.into());
    }
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        common::write_model(&dir.path().join("tiny.gguf"), TypeId::Q8_0);
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, data: &str) -> RunConfig {
        RunConfig {
            base: self.path("tiny.gguf"),
            data: vec![self.path(data)],
            eval_split: EvalSplit::Count(0),
            rank: 4,
            lr: Some(5e-3),
            seed: 1,
            ..RunConfig::default()
        }
    }

    fn start(&self, config: &RunConfig, name: &str) -> Watcher {
        let mut watcher = Watcher::default();
        self.go(config, Start::New { out: self.path(name), run_id: name.into() }, &mut watcher);
        watcher
    }

    fn go(&self, config: &RunConfig, start: Start, watcher: &mut Watcher) {
        let cancel = watcher.cancel.clone();
        tune(config, start, &cancel, watcher).unwrap();
    }

    fn resume(&self, name: &str) -> Watcher {
        let run = Box::new(Resumed::open(&self.path(name)).unwrap());
        let (config, mut watcher) = (run.config().clone(), Watcher::default());
        self.go(&config, Start::Resume { run, allow: Vec::new() }, &mut watcher);
        watcher
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }
}

/// An epoch of packs is an epoch of examples, the plan says how many and how full, and a stopped run goes on.
#[test]
fn a_run_trains_on_packs() {
    let place = Place::new();
    let examples = common::examples(23);
    common::write_data(&place.path("data.jsonl"), &examples);
    let config = RunConfig { pack: true, context: Some(48), epochs: 2.0, ..place.config("data.jsonl") };
    let whole = place.start(&config, "a");
    let tokens: usize = examples.iter().map(|e| e.ids.len()).sum();
    let packs = packs(&examples, 48).len();
    assert!(packs < examples.len() / 2);
    let fill = tokens as f64 / (packs * 48) as f64;
    assert_eq!(whole.plan.tokens.packed, Some(Packed { packs, context: 48, fill }));
    assert_eq!((whole.plan.tokens.train_examples, whole.plan.steps), (23, (2 * packs).div_ceil(4)));
    assert_eq!(whole.tokens.iter().sum::<usize>() as u64, whole.plan.tokens.run_tokens);
    // Steps of four packs: two epochs are whole steps where the packs are even.
    assert!(packs.is_multiple_of(2) && whole.plan.tokens.run_tokens == 2 * tokens as u64, "{packs}");
    let mut stopped = Watcher { cancel_after: Some(2), ..Watcher::default() };
    place.go(&config, Start::New { out: place.path("b"), run_id: "b".into() }, &mut stopped);
    let rest = place.resume("b");
    assert_eq!(whole.losses, [stopped.losses, rest.losses].concat());
}

/// Three epochs over a corpus with a header are three epochs over its pieces: an epoch begins with a token.
#[test]
fn a_corpus_begins_again_at_its_first_token() {
    let place = Place::new();
    let ids: Vec<u32> = (0..200).map(|i| (i * i + 3 * i) % 64).collect();
    let bytes = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    place.write("corpus.toyc", [b"TOYC".to_vec(), bytes(&[1, 64, 0]), bytes(&ids)].concat());
    place.write("flat.bin", bytes(&ids));
    let piece = |start: usize| {
        let ids = ids[start..(start + 32).min(200)].to_vec();
        Example { trained: (0..ids.len()).map(|i| i > 0).collect(), ids, place: String::new() }
    };
    common::write_data(&place.path("pieces.jsonl"), &(0..7).map(|i| piece(i * 31)).collect::<Vec<_>>());
    let run = |data: &str| {
        let config = RunConfig { context: Some(32), epochs: 3.0, batch_size: 2, ..place.config(data) };
        place.start(&config, &format!("run-{data}"))
    };
    let (pieces, corpus, flat) = (run("pieces.jsonl"), run("corpus.toyc"), run("flat.bin"));
    assert_eq!(pieces.losses.len(), 11);
    assert_eq!((&pieces.losses, &pieces.tokens), (&corpus.losses, &corpus.tokens));
    assert_eq!(pieces.losses, flat.losses);
    assert_eq!(pieces.plan.tokens.data.trained_tokens, 199);
}

/// The cache changes nothing that a run computes, and one that is damaged is told of.
#[test]
fn a_cached_run_is_the_run() {
    let place = Place::new();
    common::write_data(&place.path("data.jsonl"), &common::examples(11));
    let steps = Some(4);
    let plain = place.start(&RunConfig { steps, ..place.config("data.jsonl") }, "plain");
    let config = RunConfig { steps, cache: Some(place.path("cache")), ..place.config("data.jsonl") };
    for name in ["first", "second"] {
        let run = place.start(&config, name);
        assert_eq!((run.losses, run.warnings), (plain.losses.clone(), Vec::new()));
    }
    let entry = std::fs::read_dir(place.path("cache")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(entry.join("ids.bin"), b"damaged").unwrap();
    let run = place.start(&config, "third");
    assert_eq!((run.losses, run.warnings.len()), (plain.losses, 1));
}

/// Patterns are kept as such, from the root: a run goes on from wherever it is called.
#[test]
fn a_pattern_of_files_is_data() {
    let place = Place::new();
    let examples = common::examples(6);
    common::write_data(&place.path("all.data.jsonl"), &examples);
    common::write_data(&place.path("part-1.jsonl"), &examples[..2]);
    common::write_data(&place.path("part-2.jsonl"), &examples[2..]);
    let config =
        |data| RunConfig { steps: Some(3), max_length_policy: LengthPolicy::Drop, ..place.config(data) };
    let (one, many) =
        (place.start(&config("all.data.jsonl"), "one"), place.start(&config("part-*.jsonl"), "many"));
    assert_eq!(one.losses, many.losses);
    let stored = Resumed::open(&place.path("many")).unwrap().config().data.clone();
    assert_eq!(stored, [place.path("part-*.jsonl")]);
    assert!(place.resume("many").losses.is_empty());
}

#[test]
fn standard_input_is_given_once() {
    let both = RunConfig { data: vec!["-".into()], eval_data: vec!["-".into()], ..RunConfig::default() };
    assert_eq!(both.check().unwrap_err().code(), "stdin");
    assert!(RunConfig { eval_data: Vec::new(), ..both }.check().is_ok());
}
