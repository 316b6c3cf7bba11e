//! A run: from settings to what it came to.

use std::path::{Path, PathBuf};

use planish_base::{CancelToken, Result};
use planish_engine::score::Summary;
use planish_store::{fs, process};
use serde_json::{Value, json};

use crate::base::{self, Base};
use crate::checkpoint::{self, Checkpoint, State};
use crate::config::RunConfig;
use crate::events::{Events, SCHEMA, now};
use crate::identity;
use crate::plan::{Disk, Plan};
use crate::resumed::Resumed;
use crate::run::Run;
use crate::run_dir::RunDir;
use crate::trainer::StepReport;
use crate::training::Training;

/// Follows a run; the command line prints, tests record.
pub trait Observer {
    /// Before the first step.
    fn plan(&mut self, _plan: &Plan) {}
    /// After each step, counted from 1.
    fn step(&mut self, _step: usize, _steps: usize, _report: &StepReport) {}
    /// Held-out loss after `step` steps.
    fn eval(&mut self, _step: usize, _summary: &Summary) {}
    /// A sample after `step` steps.
    fn sample(&mut self, _step: usize, _prompt: &str, _text: &str) {}
    /// Something the user should know, and that ends nothing.
    fn warning(&mut self, _text: &str) {}
}

/// How to start.
#[derive(Debug)]
pub enum Start {
    /// Stop after the plan and write nothing.
    Plan {
        /// Where the run would be written.
        out: PathBuf,
    },
    /// A run in a directory that has none yet.
    New {
        /// The directory.
        out: PathBuf,
        /// The run's name.
        run_id: String,
    },
    /// Go on with a run.
    Resume {
        /// It.
        run: Box<Resumed>,
        /// Settings, and parts of the identity, that may differ from the checkpoint's.
        allow: Vec<String>,
    },
}

impl Start {
    pub(crate) fn out(&self) -> &Path {
        match self {
            Start::Plan { out } | Start::New { out, .. } => out,
            Start::Resume { run, .. } => run.dir.path(),
        }
    }

    /// The checkpoint to go on from.
    fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Start::Resume { run, .. } => run.checkpoint.as_ref(),
            _ => None,
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// After all steps.
    Completed,
    /// The held-out loss fell no more.
    EarlyStopped,
    /// The plan was all that was asked for.
    Planned,
    /// Stopped by the user; a checkpoint and what was trained are written.
    Interrupted,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// How it ended.
    pub outcome: Outcome,
    /// Steps done.
    pub steps: usize,
    /// Of which left out, since loss or gradient was not finite.
    pub skipped: usize,
    /// Loss of the last step.
    pub final_loss: Option<f64>,
    /// Held-out loss before and after.
    pub eval: Option<(Summary, Summary)>,
    /// Step and loss of the best evaluation during the run.
    pub best: Option<(usize, f64)>,
    /// The most memory that the process had at one time.
    pub peak_bytes: u64,
    /// The most that the plan expected.
    pub planned_bytes: u64,
    /// The adapter, or with `full` the model, as GGUF.
    pub weights: Option<PathBuf>,
    /// The adapter, as PEFT directory.
    pub peft: Option<PathBuf>,
}

impl Tuned {
    pub(crate) fn new(run: &Run, state: &State, outcome: Outcome) -> Tuned {
        Tuned {
            outcome,
            steps: state.step,
            skipped: state.skipped.0,
            final_loss: state.last_loss,
            eval: None,
            best: state.best.best.filter(|_| run.config.eval_every.is_some()),
            peak_bytes: process::peak_resident_bytes(),
            planned_bytes: run.plan.memory.total_bytes,
            weights: None,
            peft: None,
        }
    }
}

/// Trains `config.base`, or the new model of `config.model`, on `config.data` and writes a run.
///
/// # Errors
/// Kind `Usage` for settings, `Input` for model and data, `Resource` for memory and disk, `Diverged` for a loss that is
/// not finite.
pub fn tune(
    config: &RunConfig,
    start: Start,
    cancel: &CancelToken,
    observer: &mut dyn Observer,
) -> Result<Tuned> {
    config.check()?;
    let mut config = config.clone();
    let Base { model, made, drafts } = Base::open(&mut config, &start)?;
    let mut run = Run::new(&config, model)?;
    run.plan.model = made;
    run.data.warnings().for_each(|text| observer.warning(text));
    run.plan.disk = disk(&run, start.out());
    if let Some(note) = run.recipe.note(&run.engine) {
        observer.warning(&note);
    }
    let state = start.checkpoint().map_or_else(State::default, |c| c.state.clone());
    let drifts = run.config.drift_every.is_some();
    if start.checkpoint().is_none() || drifts {
        run.recipe.begin(&mut run.engine, &run.config)?;
    }
    // Before a checkpoint puts other values in their place.
    let initial = drifts.then(|| run.recipe.initial(&run.engine, run.trainer.targets()));
    let saved = start.checkpoint().map(|c| c.state.step);
    let (dir, run_id) = match start {
        Start::Plan { .. } => {
            run.plan.time = run.probe()?;
            observer.plan(&run.plan);
            return Ok(Tuned::new(&run, &state, Outcome::Planned));
        }
        Start::New { out, run_id } => {
            let dir = RunDir::create(&out)?;
            base::keep(drafts, &dir)?;
            (dir, Some(run_id))
        }
        Start::Resume { run: resumed, allow } => (go_on(&mut run, *resumed, &allow, observer)?, None),
    };
    // A run that goes on has most of its files already, and looks before each checkpoint.
    if saved.is_none() {
        dir.check_space(run.plan.disk.needed_bytes)?;
    }
    run.plan.time = run.probe()?;
    observer.plan(&run.plan);
    run.keep_stdin(&dir)?;
    dir.write_config(&run.config)?;
    dir.write_flow(&run.flow())?;
    let mut events = dir.events()?;
    match run_id {
        Some(run_id) => announce(&run, &mut events, &run_id)?,
        None => events.append("resume", Some(state.step), json!({"phase": "train", "resumed_at": now()}))?,
    }
    let mut training = Training { run, state, dir, events, cancel, observer, saved, initial };
    let result = training.train();
    training.end(&result)?;
    result
}

/// Puts the state of the checkpoint back, if this is still the same run.
fn go_on(run: &mut Run, resumed: Resumed, allow: &[String], observer: &mut dyn Observer) -> Result<RunDir> {
    identity::check_names(allow)?;
    resumed.warnings.iter().for_each(|text| observer.warning(text));
    if let Some(c) = &resumed.checkpoint {
        let differences = identity::differences((&c.config, &c.identity), (&run.config, &run.identity));
        identity::check(&differences, allow, &run.config)?;
        c.restore(&mut run.engine, &mut run.trainer)?;
    }
    Ok(resumed.dir)
}

fn disk(run: &Run, out: &Path) -> Disk {
    let weights = run.recipe.weights_bytes(&run.engine, run.plan.trained_parameters);
    let checkpoint_bytes = checkpoint::size(&run.trainer);
    // Beside each checkpoint the weights as GGUF, and once those of the best evaluation and the PEFT directory.
    // The average is written beside the old one.
    let average = if run.config.ema.is_some() { 2 * weights } else { 0 };
    // A new model's first values are a file too.
    let first = if run.config.model.is_some() { run.engine.model.weight_bytes() } else { 0 };
    let needed_bytes =
        (run.config.keep as u64 + 1) * (checkpoint_bytes + weights) + 2 * weights + average + first;
    Disk { checkpoint_bytes, needed_bytes, free_bytes: fs::free_bytes(out) }
}

fn announce(run: &Run, events: &mut Events, run_id: &str) -> Result<()> {
    let (spec, model, backend) = (&run.engine.model.spec, &run.engine.model, &run.engine.backend);
    let heads = spec.layers[0].heads;
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    events.append(
        "run_start",
        None,
        json!({
            "schema": SCHEMA, "started_at": now(), "run_id": run_id, "phase": "train",
            "host": {"name": process::host_name(), "os": os, "arch": arch},
            "backend": {"kind": "cpu", "isa": backend.isa().name(), "threads": backend.threads()},
            "planish": env!("CARGO_PKG_VERSION"),
            "model": {
                "arch": spec.arch, "name": model.name(), "vocab": spec.vocab, "d_model": spec.width,
                "n_layers": spec.layers.len(), "n_heads": heads.query, "n_kv": heads.kv,
                "d_head": heads.width, "d_ff": spec.layers[0].ff, "weight_type": model.weight_type(),
            },
            "identity": serde_json::to_value(&run.identity).unwrap_or(Value::Null),
            "config": serde_json::to_value(&run.config).unwrap_or(Value::Null),
            "plan": serde_json::to_value(&run.plan).unwrap_or(Value::Null),
        }),
    )
}
