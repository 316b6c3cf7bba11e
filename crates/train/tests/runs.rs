//! Whole runs: stopped, resumed, refused, ended early; what lies in the directory afterwards.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::path::{Path, PathBuf};

use planish_base::{CancelToken, Kind, Result, TypeId};
use planish_engine::score::Summary;
use planish_train::{
    EvalSplit, OPTIMS, Observer, Outcome, Resumed, RunConfig, Start, StepReport, Tuned, tune,
};
use tempfile::TempDir;

/// A folder with the tiny model, data, and runs.
struct Place {
    dir: TempDir,
    config: RunConfig,
}

/// Sees what happens; cancels after a step.
#[derive(Default)]
struct Watcher {
    cancel_after: Option<usize>,
    cancel: CancelToken,
    losses: Vec<(usize, u64)>,
    evals: Vec<usize>,
    warnings: Vec<String>,
}

impl Observer for Watcher {
    fn step(&mut self, step: usize, _: usize, report: &StepReport) {
        self.losses.push((step, report.loss.to_bits()));
        if self.cancel_after == Some(step) {
            self.cancel.cancel();
        }
    }

    fn eval(&mut self, step: usize, _: &Summary) {
        self.evals.push(step);
    }

    fn warning(&mut self, text: &str) {
        self.warnings.push(text.to_string());
    }
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
            rank: 4,
            alpha: 8.0,
            dropout: 0.1,
            steps: Some(20),
            lr: Some(5e-3),
            seed: 1,
            save_every: Some(4),
            eval_every: Some(3),
            ..RunConfig::default()
        };
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, name: &str, watcher: &mut Watcher) -> Result<Tuned> {
        let start = Start::New { out: self.path(name), run_id: name.into() };
        Self::go(&self.config, start, watcher)
    }

    fn resume(&self, config: &RunConfig, name: &str, allow: &[&str], watcher: &mut Watcher) -> Result<Tuned> {
        let allow = allow.iter().map(|s| (*s).to_string()).collect();
        let run = Box::new(Resumed::open(&self.path(name))?);
        Self::go(config, Start::Resume { run, allow }, watcher)
    }

    fn go(config: &RunConfig, start: Start, watcher: &mut Watcher) -> Result<Tuned> {
        let cancel = watcher.cancel.clone();
        tune(config, start, &cancel, watcher)
    }

    /// The settings that a resumed run takes.
    fn stored(&self, name: &str) -> RunConfig {
        Resumed::open(&self.path(name)).unwrap().config().clone()
    }

    fn weights(&self, name: &str, step: usize) -> Vec<u8> {
        std::fs::read(self.path(name).join(format!("weights/step_{step}.gguf"))).unwrap()
    }

    /// A run that was cancelled after `step`.
    fn cancelled(&self, name: &str, step: usize) {
        let mut watcher = Watcher { cancel_after: Some(step), ..Watcher::default() };
        let tuned = self.start(name, &mut watcher).unwrap();
        assert_eq!((tuned.outcome, tuned.steps), (Outcome::Interrupted, step));
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn interrupted_equals_uninterrupted(place: &Place) {
    let mut whole = Watcher::default();
    let a = place.start("a", &mut whole).unwrap();
    place.cancelled("b", 6);
    let mut again = Watcher { cancel_after: Some(13), ..Watcher::default() };
    assert_eq!(place.resume(&place.config, "b", &[], &mut again).unwrap().outcome, Outcome::Interrupted);
    let mut last = Watcher::default();
    let b = place.resume(&place.config, "b", &[], &mut last).unwrap();
    assert_eq!((a.outcome, b.outcome), (Outcome::Completed, Outcome::Completed));
    assert_eq!(whole.losses[6..13], again.losses);
    assert_eq!(whole.losses[13..], last.losses);
    assert!(place.weights("a", 20) == place.weights("b", 20), "the weights differ");
    let loss = |t: &Tuned| t.eval.map(|(before, after)| [before.total.to_bits(), after.total.to_bits()]);
    assert_eq!((loss(&a), a.best), (loss(&b), b.best));
    // The evaluation before the first step is not repeated.
    assert_eq!(last.evals, [15, 18, 20]);
    // Two are kept; what is there can be gone on with, and then there is nothing to do.
    for folder in ["checkpoints", "weights"] {
        let kept: Vec<String> = names(&place.path("b").join(folder));
        let steps = kept.iter().filter(|n| n.starts_with("step_")).count();
        assert_eq!(steps, 2, "{kept:?}");
    }
    let mut nothing = Watcher::default();
    place.resume(&place.config, "b", &[], &mut nothing).unwrap();
    assert!(nothing.losses.is_empty());
    assert!(place.weights("a", 20) == place.weights("b", 20));
}

#[test]
fn an_adapter_run_resumes_bit_for_bit_twice() {
    interrupted_equals_uninterrupted(&Place::new());
}

#[test]
fn a_full_run_resumes_bit_for_bit_twice() {
    let mut place = Place::new();
    place.config.full = true;
    interrupted_equals_uninterrupted(&place);
    // Its result is a whole model, which can be tuned in turn.
    let trained = place.path("a/weights/step_20.gguf");
    place.config = RunConfig { base: trained, full: false, ..place.config.clone() };
    place.start("c", &mut Watcher::default()).unwrap();
}

#[test]
fn runs_with_every_option_resume_bit_for_bit_twice() {
    let rows: [fn(&mut RunConfig); 5] = [
        |c| (c.dora, c.loraplus_ratio) = (true, Some(4.0)),
        |c| c.init_lora = "pissa".into(),
        |c| {
            (c.targets, c.layers) = ("q,down,embed,output".into(), Some("1".into()));
            (c.rank_pattern, c.alpha_pattern) = ([("q".into(), 2)].into(), [("embed".into(), 3.0)].into());
        },
        |c| c.neftune = Some(5.0),
        |c| (c.full, c.neftune) = (true, Some(5.0)),
    ];
    for row in rows {
        let mut place = Place::new();
        row(&mut place.config);
        interrupted_equals_uninterrupted(&place);
    }
}

/// What pairs began as is computed again from these.
#[test]
fn a_run_that_began_from_singular_values_cannot_go_on_with_another_start() {
    let mut place = Place::new();
    place.config.init_lora = "pissa".into();
    place.cancelled("run", 4);
    for (name, config) in [
        ("alpha", RunConfig { alpha: 4.0, ..place.config.clone() }),
        ("seed", RunConfig { seed: 9, ..place.config.clone() }),
    ] {
        let error = place.resume(&config, "run", &[name], &mut Watcher::default()).unwrap_err();
        assert!(error.code() == "resume" && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn another_run_is_refused_with_a_list() {
    let place = Place::new();
    place.cancelled("run", 4);
    let refused = |change: &dyn Fn(&mut RunConfig), allow: &[&str]| {
        let mut config = place.config.clone();
        change(&mut config);
        let error = place.resume(&config, "run", allow, &mut Watcher::default()).unwrap_err();
        assert_eq!((error.kind(), error.code()), (Kind::Usage, "resume"));
        (error.to_string(), error.hint().unwrap_or_default().to_string())
    };
    let (message, hint) = refused(
        &|c| {
            c.lr = Some(1e-3);
            c.clip = 0.5;
        },
        &["lr"],
    );
    assert!(message.ends_with("as the same run: clip was 1.0, is 0.5"), "{message}");
    assert!(hint.ends_with("--allow clip"), "{hint}");
    // The shape of the state cannot be allowed away.
    let (message, _) = refused(&|c| c.rank = 8, &[]);
    assert!(message.contains("rank was 4, is 8; trained was"), "{message}");
    let (message, _) = refused(&|c| c.full = true, &[]);
    assert!(message.contains("full was false, is true"), "{message}");
    for name in ["rank", "trained", "threads", "nothing"] {
        let error = place.resume(&place.config, "run", &[name], &mut Watcher::default()).unwrap_err();
        assert_eq!((error.kind(), error.code()), (Kind::Usage, "allow"), "{name}");
        assert!(error.hint().unwrap().contains("base") && error.hint().unwrap().contains("lr"));
    }
    common::write_data(&place.path("other.jsonl"), &common::examples(12));
    let (message, hint) = refused(&|c| c.data = vec![place.path("other.jsonl")], &[]);
    assert!(message.contains("data was "), "{message}");
    assert!(hint.contains("--allow data"), "{hint}");
    common::write_model(&place.path("other.gguf"), TypeId::F16);
    let (message, _) = refused(&|c| c.base = place.path("other.gguf"), &[]);
    assert!(message.contains("base was "), "{message}");
    // What does not change the numbers is free, and what does may be allowed.
    let free = RunConfig { threads: 3, keep: 4, save_every: Some(1), ..place.config.clone() };
    place.resume(&free, "run", &[], &mut Watcher::default()).unwrap();
    let other = RunConfig { steps: Some(22), lr: Some(1e-3), ..place.config.clone() };
    let tuned = place.resume(&other, "run", &["lr", "steps"], &mut Watcher::default()).unwrap();
    assert_eq!(tuned.steps, 22);
}

#[test]
fn damaged_checkpoints_are_left_out_and_the_one_before_is_used() {
    let place = Place::new();
    let mut whole = Watcher::default();
    place.start("a", &mut whole).unwrap();
    place.cancelled("b", 10);
    // Checkpoints of 8 and 10 are there.
    let newest = place.path("b/checkpoints/step_10/weights.safetensors");
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let mut watcher = Watcher::default();
    place.resume(&place.config, "b", &[], &mut watcher).unwrap();
    assert!(watcher.warnings[0].contains("step_10"), "{:?}", watcher.warnings);
    assert_eq!(watcher.losses, whole.losses[8..]);
    assert!(place.weights("a", 20) == place.weights("b", 20));
    for step in ["step_16", "step_20"] {
        std::fs::remove_file(place.path("b/checkpoints").join(step).join("manifest.json")).unwrap();
    }
    let error = place.resume(&place.config, "b", &[], &mut Watcher::default()).unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Input, "checkpoint"));
}

#[test]
fn a_run_without_checkpoint_begins_again_and_a_folder_without_run_is_refused() {
    let place = Place::new();
    let mut whole = Watcher::default();
    place.start("a", &mut whole).unwrap();
    std::fs::remove_dir_all(place.path("a/checkpoints")).unwrap();
    let mut again = Watcher::default();
    place.resume(&place.config, "a", &[], &mut again).unwrap();
    assert_eq!(whole.losses, again.losses);
    assert!(again.warnings[0].contains("no checkpoint yet"));
    let error = place.resume(&place.config, "nowhere", &[], &mut Watcher::default()).unwrap_err();
    assert_eq!(error.code(), "no run");
    let error = place.start("a", &mut Watcher::default()).unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Usage, "run exists"));
}

/// What was allowed once is part of the run from its next checkpoint on, and until then is not.
#[test]
fn a_change_that_was_allowed_is_kept_with_the_checkpoint() {
    let place = Place::new();
    place.cancelled("run", 4);
    let changed = RunConfig { lr: Some(1e-3), ..place.config.clone() };
    let before = place.stored("run");
    assert_eq!(before.lr, place.config.lr);
    let mut watcher = Watcher { cancel_after: Some(9), ..Watcher::default() };
    place.resume(&changed, "run", &["lr"], &mut watcher).unwrap();
    let stored = place.stored("run");
    assert_eq!(stored.lr, Some(1e-3));
    // As a kill before the first checkpoint with the change would leave it.
    std::fs::write(place.path("run/config.toml"), before.to_toml().unwrap()).unwrap();
    assert_eq!(place.stored("run").lr, Some(1e-3));
    assert_eq!(place.resume(&stored, "run", &[], &mut Watcher::default()).unwrap().steps, 20);
}

#[test]
fn a_checkpoint_under_another_name_is_not_the_newest() {
    let place = Place::new();
    let whole = place.start("a", &mut Watcher::default()).unwrap();
    let checkpoints = place.path("a/checkpoints");
    for name in ["step_99", "step_020", "step_+20"] {
        std::fs::create_dir(checkpoints.join(name)).unwrap();
        for file in names(&checkpoints.join("step_16")) {
            std::fs::copy(checkpoints.join("step_16").join(&file), checkpoints.join(name).join(&file))
                .unwrap();
        }
    }
    let mut watcher = Watcher::default();
    let again = place.resume(&place.config, "a", &[], &mut watcher).unwrap();
    assert_eq!((again.steps, watcher.losses.len()), (whole.steps, 0));
    assert!(watcher.warnings.iter().any(|w| w.contains("step_99") && w.contains("step 16")));
    // Weights that a kill kept from being written are made up for.
    let weights = place.weights("a", 20);
    std::fs::remove_file(place.path("a/weights/step_20.gguf")).unwrap();
    place.resume(&place.config, "a", &[], &mut Watcher::default()).unwrap();
    assert!(place.weights("a", 20) == weights);
}

#[derive(Default)]
struct Planned(planish_train::Plan);

impl Observer for Planned {
    fn plan(&mut self, plan: &planish_train::Plan) {
        self.0 = plan.clone();
    }
}

#[test]
fn long_runs_are_planned_at_once() {
    let place = Place::new();
    let plan = |steps: Option<usize>, epochs: f64| {
        let mut seen = Planned::default();
        let config = RunConfig { steps, epochs, ..place.config.clone() };
        let start = Start::Plan { out: place.path("p") };
        tune(&config, start, &CancelToken::new(), &mut seen).map(|_| seen.0)
    };
    // Nine examples in batches of four: nine steps are four passes.
    let (short, long) = (plan(Some(9), 1.0).unwrap(), plan(Some(9 * 400_000_000), 1.0).unwrap());
    assert_eq!(long.tokens.run_tokens, short.tokens.run_tokens * 400_000_000);
    assert_eq!(plan(Some(1 << 40), 1.0).unwrap_err().kind(), Kind::Usage);
    assert_eq!(plan(None, 1e300).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn two_trainers_do_not_share_a_directory() {
    struct Second<'a>(&'a Place, Option<planish_base::Error>);
    impl Observer for Second<'_> {
        fn step(&mut self, step: usize, _: usize, _: &StepReport) {
            if step == 5 {
                let second = self.0.resume(&self.0.config, "run", &[], &mut Watcher::default());
                self.1 = second.err();
            }
        }
    }
    let place = Place::new();
    let mut observer = Second(&place, None);
    let start = Start::New { out: place.path("run"), run_id: "run".into() };
    tune(&place.config, start, &CancelToken::new(), &mut observer).unwrap();
    let error = observer.1.unwrap();
    assert_eq!((error.kind(), error.code()), (Kind::Resource, "locked"));
}

#[test]
fn a_run_stops_when_the_held_out_loss_falls_no_more() {
    let mut place = Place::new();
    // A rate that makes it worse from the start.
    place.config = RunConfig {
        lr: Some(0.5),
        schedule: "constant".into(),
        warmup: Some(0),
        eval_every: Some(1),
        early_stop: Some(3),
        steps: Some(60),
        ..place.config.clone()
    };
    let mut watcher = Watcher::default();
    let tuned = place.start("a", &mut watcher).unwrap();
    assert_eq!(tuned.outcome, Outcome::EarlyStopped);
    let (best, _) = tuned.best.unwrap();
    assert_eq!(tuned.steps, best + 3);
    assert!(place.path("a/weights/best.gguf").exists());
    // It stays stopped.
    let again = place.resume(&place.config, "a", &[], &mut Watcher::default()).unwrap();
    assert_eq!((again.outcome, again.steps), (Outcome::EarlyStopped, tuned.steps));
}

#[test]
fn training_can_start_from_an_adapter() {
    let mut place = Place::new();
    let first = place.start("a", &mut Watcher::default()).unwrap();
    place.config = RunConfig { init_adapter: first.weights, ..place.config.clone() };
    let second = place.start("b", &mut Watcher::default()).unwrap();
    let (before, after) = (second.eval.unwrap().0, first.eval.unwrap().1);
    assert_eq!(before.total.to_bits(), after.total.to_bits());
    // Going on does not look at it again: the values are in the checkpoint.
    place.cancelled("d", 6);
    let adapter = place.config.init_adapter.clone().unwrap();
    std::fs::rename(&adapter, place.path("moved.gguf")).unwrap();
    place.resume(&place.stored("d"), "d", &[], &mut Watcher::default()).unwrap();
    std::fs::rename(place.path("moved.gguf"), &adapter).unwrap();
    assert!(place.weights("b", 20) == place.weights("d", 20));
    place.config.rank = 2;
    let error = place.start("c", &mut Watcher::default()).unwrap_err();
    assert!(error.to_string().contains("has rank 4"), "{error}");
}

/// The whole way of every optimizer: stopped and resumed it ends with the bytes of the run that was not, however often
/// either looked at its held-out loss.
#[test]
fn every_optimizer_goes_through_a_whole_run() {
    for (optim, full) in OPTIMS.iter().flat_map(|o| [(o, false), (o, true)]) {
        let mut place = Place::new();
        place.config = RunConfig {
            optimizer: optim.name.into(),
            full,
            steps: Some(9),
            eval_every: None,
            weight_decay: 0.01,
            lr: Some(1e-3),
            ..place.config
        };
        let tuned = place.start("a", &mut Watcher::default()).unwrap();
        place.config.eval_every = Some(2);
        place.cancelled("b", 5);
        let resumed = place.resume(&place.config, "b", &[], &mut Watcher::default()).unwrap();
        assert_eq!(tuned.final_loss, resumed.final_loss, "{}", optim.name);
        assert!(place.weights("a", 9) == place.weights("b", 9), "{} {full}", optim.name);
        // What was not given is in the run's file, so that a later release with other defaults goes on the same way.
        let text = std::fs::read_to_string(place.path("a/config.toml")).unwrap();
        let stored: RunConfig = toml::from_str(&text).unwrap();
        let expected = |name: &str| optim.uses.contains(&name);
        assert_eq!(stored.betas, expected("betas").then_some(optim.usual.betas));
        assert_eq!(stored.momentum, expected("momentum").then_some(optim.usual.momentum));
    }
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let refused = |change: fn(&mut RunConfig)| {
        let mut config = RunConfig::default();
        change(&mut config);
        let error = config.check().unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        format!("{error}; {}", error.hint().unwrap_or_default())
    };
    let message = refused(|c| c.momentum = Some(0.9));
    assert!(message.contains("momentum is given, adamw has no such setting"), "{message}");
    assert!(message.contains("choose sgd or muon"), "{message}");
    let message = refused(|c| (c.optimizer, c.betas) = ("sgd".into(), Some((0.9, 0.99))));
    assert!(message.contains("betas is given, sgd has no such setting"), "{message}");
    let message = refused(|c| (c.optimizer, c.nesterov) = ("muon".into(), true));
    assert!(message.contains("nesterov is given") && message.contains("choose sgd"), "{message}");
    let message = refused(|c| c.cycles = Some(3));
    assert!(
        message.contains("cycles is given, cosine") && message.contains("choose cosine-restarts"),
        "{message}"
    );
    let message = refused(|c| (c.schedule, c.decay_share) = ("wsd".into(), Some(0.0)));
    assert!(message.contains("decay-share is 0, expected more than 0, at most 1"), "{message}");
    let message = refused(|c| (c.schedule, c.cycles) = ("cosine-restarts".into(), Some(0)));
    assert!(message.contains("cycles is 0, expected at least 1"), "{message}");
    let message = refused(|c| (c.optimizer, c.momentum) = ("sgd".into(), Some(1.0)));
    assert!(message.contains("momentum is 1, expected in [0, 1)"), "{message}");
}
