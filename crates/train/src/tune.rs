//! Fine-tuning: steps, evaluations, samples and checkpoints of a run, from its plan to its last file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use planish_base::{CancelToken, Error, Kind, Result};
use planish_engine::score::{self, Summary};
use planish_engine::{Sampler, SamplerOptions, Session, Stop, generate};
use planish_store::{fs, process};
use serde_json::{Value, json};

use crate::checkpoint::{self, Checkpoint, State};
use crate::config::{OnNonfinite, TuneConfig};
use crate::events::{Events, SCHEMA, now};
use crate::identity;
use crate::plan::{Disk, Plan};
use crate::run::Run;
use crate::run_dir::RunDir;
use crate::schedule;
use crate::trainer::StepReport;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Stop after the plan and write nothing.
    Plan,
    /// A run of this name in a directory that has none yet.
    New {
        /// Its name.
        run_id: String,
    },
    /// Go on with the run of the directory, from its newest checkpoint that passes all checks.
    Resume {
        /// Settings, and parts of the identity, that may differ from the checkpoint's.
        allow: Vec<String>,
    },
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

/// Fine-tunes `config.model` on `config.data` and writes the run to `out`.
///
/// # Errors
/// Kind `Usage` for settings, `Input` for model and data, `Resource` for memory and disk, `Diverged` for a loss that is
/// not finite.
pub fn tune(
    config: &TuneConfig,
    out: &Path,
    start: &Start,
    cancel: &CancelToken,
    observer: &mut dyn Observer,
) -> Result<Tuned> {
    config.check()?;
    let mut run = Run::new(config)?;
    run.plan.disk = disk(&run, out);
    if *start == Start::Plan {
        run.plan.time = run.probe()?;
        observer.plan(&run.plan);
        return Ok(tuned(&run, &State::default(), Outcome::Planned));
    }
    let (dir, checkpoint) = open(&run, out, start, observer)?;
    check_space(&dir, run.plan.disk.needed_bytes)?;
    run.plan.time = run.probe()?;
    observer.plan(&run.plan);
    let state = match &checkpoint {
        Some(c) => {
            c.restore(&mut run.engine, &mut run.trainer)?;
            c.state.clone()
        }
        None => State::default(),
    };
    dir.write_config(&run.config)?;
    dir.write_flow(&run.flow())?;
    let mut events = dir.events()?;
    match start {
        Start::New { run_id } => announce(&run, &mut events, run_id)?,
        _ => events.append("resume", Some(state.step), json!({"phase": "train", "resumed_at": now()}))?,
    }
    let saved = checkpoint.map(|c| c.state.step);
    let mut training = Training { run, state, dir, events, cancel, observer, saved };
    let result = training.train();
    training.end(&result)?;
    result
}

/// Opens the run's directory, and the checkpoint to go on from.
fn open(
    run: &Run,
    out: &Path,
    start: &Start,
    observer: &mut dyn Observer,
) -> Result<(RunDir, Option<Checkpoint>)> {
    let Start::Resume { allow } = start else { return Ok((RunDir::create(out)?, None)) };
    let (dir, removed) = RunDir::open(out)?;
    for path in removed {
        observer.warning(&format!("removed {}, which was left unfinished", path.display()));
    }
    let (found, refused) = checkpoint::latest(&dir.checkpoints())?;
    for e in &refused {
        observer.warning(&format!("checkpoint left out: {e}"));
    }
    match &found {
        Some(c) => {
            let differences = identity::differences((&c.config, &c.identity), (&run.config, &run.identity));
            identity::check(&differences, allow)?;
        }
        None => observer.warning("the run has no checkpoint yet: it begins at its first step"),
    }
    Ok((dir, found))
}

fn disk(run: &Run, out: &Path) -> Disk {
    let weights = 4 * run.plan.trained_parameters;
    let checkpoint_bytes = checkpoint::size(&run.trainer);
    // Beside each checkpoint the weights as GGUF, and once those of the best evaluation and the PEFT directory.
    let needed_bytes = (run.config.keep as u64 + 1) * (checkpoint_bytes + weights) + 2 * weights;
    Disk { checkpoint_bytes, needed_bytes, free_bytes: fs::free_bytes(out) }
}

fn check_space(dir: &RunDir, needed: u64) -> Result<()> {
    match fs::free_bytes(dir.path()) {
        Some(free) if free < needed => {
            let mb = |b: u64| b / 1_000_000;
            let message = format!("writing needs {} MB, {} MB are free", mb(needed), mb(free));
            Err(Error::resource("disk full", message)
                .in_file(dir.path())
                .with_hint("free some space, or choose a place on another disk with --out"))
        }
        _ => Ok(()),
    }
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
            "host": {"os": os, "arch": arch},
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

fn tuned(run: &Run, state: &State, outcome: Outcome) -> Tuned {
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

/// A run at work.
struct Training<'a> {
    run: Run,
    state: State,
    dir: RunDir,
    events: Events,
    cancel: &'a CancelToken,
    observer: &'a mut dyn Observer,
    /// Step of the newest checkpoint.
    saved: Option<usize>,
}

impl Training<'_> {
    fn train(&mut self) -> Result<Tuned> {
        if self.saved.is_none() {
            let before = self.evaluate()?;
            self.state.before = before.map(|s| (s.total, s.tokens));
            self.sample()?;
        }
        let outcome = self.steps()?;
        self.save()?;
        let peft = self.run.recipe.write_companions(&self.run.engine, &self.dir, self.state.step)?;
        let mut tuned = tuned(&self.run, &self.state, outcome);
        (tuned.weights, tuned.peft) = (Some(self.dir.weights(self.state.step)), peft);
        if outcome != Outcome::Interrupted {
            let before = self.state.before.map(|(total, tokens)| Summary { total, tokens });
            tuned.eval = before.zip(self.evaluate()?);
            self.sample()?;
        }
        Ok(tuned)
    }

    fn steps(&mut self) -> Result<Outcome> {
        let (shape, steps) = (self.run.shape(), self.run.plan.steps);
        let schedule = schedule::of(&self.run.config.schedule)?;
        while self.state.step < steps {
            if self.cancel.is_cancelled() {
                return Ok(Outcome::Interrupted);
            }
            if self.run.config.early_stop.is_some_and(|n| self.state.best.since >= n) {
                return Ok(Outcome::EarlyStopped);
            }
            self.step(schedule.rate(&shape, self.state.step))?;
            let step = self.state.step;
            let due = |every: Option<usize>| step < steps && every.is_some_and(|n| step.is_multiple_of(n));
            if due(self.run.config.eval_every)
                && let Some(summary) = self.evaluate()?
                && self.state.best.is_best(step, summary.loss())
            {
                self.run.recipe.write_weights(&self.run.engine, &self.dir.best())?;
            }
            if due(self.run.config.sample_every) {
                self.sample()?;
            }
            // Last, so that a checkpoint of step N holds what the evaluation after it led to.
            if due(Some(self.run.save_every())) {
                self.save()?;
            }
        }
        Ok(Outcome::Completed)
    }

    /// One step, or its omission where the policy allows it.
    fn step(&mut self, lr: f64) -> Result<()> {
        let start = Instant::now();
        let Run { config, data, engine, recipe, trainer, order, .. } = &mut self.run;
        let examples = data.step(order, self.state.step);
        let result = trainer.step(engine, &recipe.adapters(), &examples, self.state.step, lr, config.seed);
        let report = match result {
            Err(e) if e.kind() == Kind::Diverged => return self.diverged(e),
            result => result?,
        };
        self.state.skipped.1 = 0;
        self.state.last_loss = Some(report.loss);
        self.advance();
        let (step, wall_us) = (self.state.step, start.elapsed().as_micros() as u64);
        let fields = json!({"phase": "train", "loss": report.loss, "lr": report.lr, "tokens": report.tokens,
                            "trained": report.trained, "grad_norm": report.grad_norm, "wall_us": wall_us});
        self.events.append("step", Some(step), fields)?;
        self.observer.step(step, self.run.plan.steps, &report);
        if let Some(z) = self.state.losses.jump(report.loss) {
            let loss = report.loss;
            let text =
                format!("step {step}: loss {loss:.4} is {z:.1} standard deviations above those before");
            self.events.append("warning", Some(step), json!({"phase": "train", "text": text, "z": z}))?;
            self.observer.warning(&text);
        }
        Ok(())
    }

    /// Counts the step and the examples it used up.
    fn advance(&mut self) {
        self.state.step += 1;
        self.state.updates = self.run.trainer.updates();
        let (used, n) = (self.state.step * self.run.order.batch_size, self.run.order.examples);
        (self.state.epoch, self.state.position) = (used / n, used % n);
    }

    /// A loss or gradient that is not finite: the weights are those before the step.
    fn diverged(&mut self, e: Error) -> Result<()> {
        let (skipped, in_a_row) = (self.state.skipped.0 + 1, self.state.skipped.1 + 1);
        if let OnNonfinite::Skip(most) = self.run.config.on_nonfinite
            && in_a_row <= most
        {
            self.state.skipped = (skipped, in_a_row);
            self.advance();
            let text = format!("left out: {e}");
            self.events.append("skip", Some(self.state.step), json!({"phase": "train", "text": text}))?;
            self.observer.warning(&text);
            return Ok(());
        }
        // The run can go on from here with other settings, unless the weights themselves are no numbers any more;
        // then an older checkpoint is what can be used, and the first error is the one to tell.
        if self.state.step > 0 {
            _ = self.save();
        }
        Err(e)
    }

    /// Checkpoint, then the weights for others to load; older ones go only after both are safe.
    fn save(&mut self) -> Result<()> {
        let step = self.state.step;
        if self.saved == Some(step) && fs::exists(&self.dir.weights(step)) {
            return Ok(());
        }
        let run = &self.run;
        let needed = run.plan.disk.checkpoint_bytes + 4 * run.plan.trained_parameters;
        check_space(&self.dir, needed)?;
        if self.saved != Some(step) {
            let path = self.dir.checkpoint(step);
            Checkpoint::save(&path, &run.engine, &run.trainer, &run.config, &self.state, &run.identity)
                .map_err(|e| self.saving_failed(e, needed))?;
            self.saved = Some(step);
        }
        run.recipe.write_weights(&run.engine, &self.dir.weights(step))?;
        self.dir.set_latest(step)?;
        checkpoint::remove_old(&self.dir.checkpoints(), step, run.config.keep)?;
        self.dir.remove_old_weights(step, run.config.keep)?;
        self.events.append("checkpoint", Some(step), json!({"phase": "train"}))?;
        self.events.sync()
    }

    /// What is needed, and what is still there.
    fn saving_failed(&self, e: Error, needed: u64) -> Error {
        if e.kind() != Kind::Resource {
            return e;
        }
        let kept = match self.saved {
            Some(step) => format!("the checkpoint of step {step} is kept"),
            None => "there is no checkpoint yet".to_string(),
        };
        let hint = format!(
            "a checkpoint and its weights need {} MB; {kept}; when there is room, go on with: planish tune --resume {}",
            needed.div_ceil(1_000_000),
            self.dir.path().display()
        );
        e.with_hint(hint)
    }

    fn evaluate(&mut self) -> Result<Option<Summary>> {
        let Run { data, engine, recipe, .. } = &mut self.run;
        let examples = data.eval_examples();
        if examples.is_empty() {
            return Ok(None);
        }
        let n = examples.len();
        // A model that was sound before the first step and is not any more has diverged.
        let trained = self.state.step > 0;
        let summary = score::examples(engine, examples, &recipe.adapters())
            .map_err(|e| if trained && e.code() == "not finite" { e.with_kind(Kind::Diverged) } else { e })?;
        self.events.append(
            "eval",
            Some(self.state.step),
            json!({"phase": "eval", "name": "held-out", "loss": summary.loss(), "ppl": summary.perplexity(),
                   "samples": n, "extra": {"tokens": summary.tokens}}),
        )?;
        self.observer.eval(self.state.step, &summary);
        Ok(Some(summary))
    }

    fn sample(&mut self) -> Result<()> {
        let Run { engine, recipe, prompt, config, .. } = &mut self.run;
        let model = engine.model.clone();
        let Some(tokenizer) = model.tokenizer.as_ref().filter(|_| !prompt.is_empty()) else {
            return Ok(());
        };
        let mut session = Session::new(engine, &recipe.adapters())?;
        let mut sampler = Sampler::new(SamplerOptions::default())?;
        let tokens = config.sample_tokens.min(session.room().saturating_sub(prompt.len()));
        let stop = Stop { tokens, ..Stop::default() };
        let out = generate(&mut session, prompt, &mut sampler, &stop, self.cancel, &mut |_| {})?;
        drop(session);
        let prompt = tokenizer.decode(prompt);
        self.events.append(
            "sample",
            Some(self.state.step),
            json!({"phase": "decode", "prompt": prompt, "text": out.text}),
        )?;
        self.observer.sample(self.state.step, &prompt, &out.text);
        Ok(())
    }

    /// Writes how the run ended.
    fn end(&mut self, result: &Result<Tuned>) -> Result<()> {
        let (reason, exit_code) = match result {
            Ok(t) if t.outcome == Outcome::Interrupted => ("interrupted", Kind::Interrupted.exit_code()),
            Ok(_) => ("completed", 0),
            Err(e) if e.kind() == Kind::Diverged => ("aborted", e.kind().exit_code()),
            Err(e) => ("errored", e.kind().exit_code()),
        };
        let error = result.as_ref().err().map(ToString::to_string);
        let written = self.events.append(
            "run_end",
            None,
            json!({"ended_at": now(), "reason": reason, "final_step": self.state.step,
                   "final_loss": self.state.last_loss, "exit_code": exit_code, "error": error,
                   "extra": {"peak_bytes": process::peak_resident_bytes()}}),
        );
        // An error of the run itself says more than one of the log, which often has the same cause.
        if result.is_err() { Ok(()) } else { written }
    }
}
