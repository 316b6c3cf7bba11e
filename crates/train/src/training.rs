//! The loop: steps, evaluations, samples and checkpoints, in an order that a resumed run repeats.

use std::time::Instant;

use planish_base::{CancelToken, Error, Kind, Result};
use planish_engine::score::{self, Summary};
use planish_engine::{Sampler, SamplerOptions, Session, Stop, generate};
use planish_store::{fs, process};
use serde_json::json;

use crate::checkpoint::{Checkpoint, State};
use crate::config::OnNonfinite;
use crate::events::{Events, now};
use crate::run::Run;
use crate::run_dir::RunDir;
use crate::schedule;
use crate::tune::{Observer, Outcome, Tuned};
use crate::weight_events::{self, Initial};

/// A run at work.
pub(crate) struct Training<'a> {
    pub run: Run,
    pub state: State,
    pub dir: RunDir,
    pub events: Events,
    pub cancel: &'a CancelToken,
    pub observer: &'a mut dyn Observer,
    /// Step of the newest checkpoint.
    pub saved: Option<usize>,
    /// Where the tensors began, if their drift is reported.
    pub initial: Option<Initial>,
}

impl Training<'_> {
    /// From where it is to the end, or to a reason to stop.
    ///
    /// # Errors
    /// Kind `Resource` for memory and disk, `Diverged` for what is not finite.
    pub fn train(&mut self) -> Result<Tuned> {
        if self.saved == Some(self.state.step) {
            // A kill may have come between the checkpoint and its weights.
            self.save()?;
        }
        if self.saved.is_none() {
            let before = self.evaluate()?;
            self.state.before = before.map(|s| (s.total, s.tokens));
            self.sample()?;
        }
        let outcome = self.steps()?;
        self.save()?;
        let peft = self.run.recipe.write_companions(&self.run.engine, &self.dir, self.state.step)?;
        let mut tuned = Tuned::new(&self.run, &self.state, outcome);
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
        let sequences = data.step(order, self.state.step);
        let result = trainer.step(engine, &recipe.adapters(), &sequences, self.state.step, lr, config.seed);
        let report = match result {
            Err(e) if e.kind() == Kind::Diverged => return self.diverged(e),
            result => result?,
        };
        self.state.skipped.1 = 0;
        self.state.last_loss = Some(report.loss);
        self.advance();
        let (step, wall_us) = (self.state.step, start.elapsed().as_micros() as u64);
        let fields = json!({"phase": "train", "loss": report.loss, "ppl": report.loss.exp(), "lr": report.lr, "tokens": report.tokens,
                            "trained": report.trained, "grad_norm": report.grad_norm, "wall_us": wall_us});
        self.events.append("step", Some(step), fields)?;
        self.look_at_weights(step)?;
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

    /// What is due after a step of gradients and drift of each tensor.
    fn look_at_weights(&mut self, step: usize) -> Result<()> {
        let Run { config, engine, trainer, plan, .. } = &self.run;
        if config.grad_every.is_some_and(|n| step.is_multiple_of(n)) {
            weight_events::gradients(&mut self.events, engine, trainer.targets(), step)?;
        }
        if let (Some(n), Some(initial)) = (config.drift_every, &self.initial)
            && (step.is_multiple_of(n) || step == plan.steps)
        {
            initial.drift(&mut self.events, engine, trainer.targets(), step)?;
        }
        Ok(())
    }

    /// Counts the step and the sequences it used up.
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
        let weights = run.recipe.weights_bytes(&run.engine, run.plan.trained_parameters);
        let files = if run.config.ema.is_some() { 2 } else { 1 };
        let needed = run.plan.disk.checkpoint_bytes + files * weights;
        self.dir.check_space(needed)?;
        if self.saved != Some(step) {
            let path = self.dir.checkpoint(step);
            Checkpoint::save(&path, &run.engine, &run.trainer, &run.config, &self.state, &run.identity)
                .map_err(|e| self.saving_failed(e, needed))?;
            self.saved = Some(step);
        }
        // Before the weights: where these are there, nothing is missing.
        let (run, average) = (&mut self.run, self.dir.average());
        run.trainer.with_average(&mut run.engine, |engine| run.recipe.write_weights(engine, &average))?;
        run.recipe.write_weights(&run.engine, &self.dir.weights(step))?;
        self.dir.set_latest(step)?;
        // Nothing is lost when too much is kept.
        if let Err(e) = self.dir.remove_old(step, run.config.keep) {
            self.observer.warning(&format!("an old checkpoint stays: {e}"));
        }
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
                   "samples": n, "extra": {"tokens": summary.tokens, "floor": self.run.plan.floor}}),
        )?;
        self.observer.eval(self.state.step, &summary);
        Ok(Some(summary))
    }

    fn sample(&mut self) -> Result<()> {
        let context = self.run.sample_context();
        let Run { engine, recipe, prompt, config, .. } = &mut self.run;
        let model = engine.model.clone();
        let Some(tokenizer) = model.tokenizer.as_ref().filter(|_| !prompt.is_empty()) else {
            return Ok(());
        };
        let mut session = Session::of(engine, &recipe.adapters(), context)?;
        let (temperature, seed) = (config.sample_temperature, config.seed);
        let mut sampler = Sampler::new(SamplerOptions { temperature, seed, ..SamplerOptions::default() })?;
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
    ///
    /// # Errors
    /// Kind `Resource` when the log of a run that ended well cannot be written.
    pub fn end(&mut self, result: &Result<Tuned>) -> Result<()> {
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
