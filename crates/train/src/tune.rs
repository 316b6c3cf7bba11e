//! LoRA fine-tuning: the frozen base keeps its file's bytes, a pair of small matrices beside each chosen linear map
//! is trained.

use std::path::{Path, PathBuf};
use std::time::Instant;

use planish_base::{CancelToken, Kind, Result};
use planish_compute::Isa;
use planish_engine::score::{self, Summary};
use planish_engine::{
    AdapterFile, Engine, EngineOptions, Model, ModelfileOptions, Provenance, Sampler, SamplerOptions,
    Session, Stop, generate, modelfile,
};
use planish_model::{AdapterSet, AdapterSpec, Trainable};
use planish_store::process;
use planish_text::Example;
use serde_json::{Value, json};

use crate::config::{Decay, TuneConfig};
use crate::data::{Data, Order};
use crate::events::{Events, SCHEMA, now};
use crate::optim::{self, OptimSettings, OptimState, Target};
use crate::plan::{self, Plan, Time, Tokens};
use crate::run_dir::RunDir;
use crate::schedule::{self, Shape};
use crate::trainer::{StepReport, Trainer};

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
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// After all steps.
    Completed,
    /// The plan was all that was asked for.
    Planned,
    /// Stopped by the user; what was trained is written.
    Interrupted,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// How it ended.
    pub outcome: Outcome,
    /// Steps done.
    pub steps: usize,
    /// Loss of the last step.
    pub final_loss: Option<f64>,
    /// Held-out loss before and after.
    pub eval: Option<(Summary, Summary)>,
    /// The most memory that the process had at one time.
    pub peak_bytes: u64,
    /// The most that the plan expected.
    pub planned_bytes: u64,
    /// The adapter, as GGUF.
    pub adapter: Option<PathBuf>,
    /// The adapter, as PEFT directory.
    pub peft: Option<PathBuf>,
}

/// Fine-tunes `config.model` on `config.data` and writes the run to `out`. With `dry_run`, stops after the plan and
/// writes nothing.
///
/// # Errors
/// Kind `Usage` for settings, `Input` for model and data, `Resource` for memory and disk, `Diverged` for a loss that is
/// not finite.
pub fn tune(
    config: &TuneConfig,
    out: &Path,
    run_id: &str,
    dry_run: bool,
    cancel: &CancelToken,
    observer: &mut dyn Observer,
) -> Result<Tuned> {
    config.check()?;
    let model = Model::open(&config.model)?;
    let data = Data::load(config, &model)?;
    // Before anything is allocated for the run, so that nothing is counted twice.
    let process_bytes = process::resident_bytes();
    let mut run = Run::new(config, model, data, process_bytes)?;
    let fits = plan::check_fits(&run.plan.memory, process::available_bytes());
    if fits.is_ok() {
        run.plan.time = run.probe()?;
    }
    observer.plan(&run.plan);
    fits?;
    if dry_run {
        return Ok(run.tuned(Outcome::Planned, None));
    }
    let dir = RunDir::create(out)?;
    dir.write_config(config)?;
    dir.write_flow(&run.flow())?;
    let mut events = dir.events()?;
    run.announce(&mut events, run_id)?;
    let result = run.train(&dir, &mut events, cancel, observer);
    let (reason, exit_code) = match &result {
        Ok(t) if t.outcome == Outcome::Interrupted => ("interrupted", Kind::Interrupted.exit_code()),
        Ok(_) => ("completed", 0),
        Err(e) if e.kind() == Kind::Diverged => ("aborted", e.kind().exit_code()),
        Err(e) => ("errored", e.kind().exit_code()),
    };
    let error = result.as_ref().err().map(ToString::to_string);
    events.append(
        "run_end",
        None,
        json!({"ended_at": now(), "reason": reason, "final_step": run.step, "final_loss": run.last_loss,
               "exit_code": exit_code, "error": error,
               "extra": {"peak_bytes": process::peak_resident_bytes()}}),
    )?;
    result
}

/// A run that is ready to train.
struct Run<'a> {
    config: &'a TuneConfig,
    data: Data,
    engine: Engine,
    adapter: AdapterSpec,
    set: AdapterSet,
    trainer: Trainer,
    order: Order,
    plan: Plan,
    step: usize,
    last_loss: Option<f64>,
    prompt: Vec<u32>,
}

impl<'a> Run<'a> {
    fn new(config: &'a TuneConfig, model: Model, data: Data, process_bytes: u64) -> Result<Run<'a>> {
        let adapter = config.adapter()?;
        let prompt = data.sample_prompt(config, &model)?;
        let sample_room = prompt.len() + config.sample_tokens;
        let context = data.context.max(sample_room).min(model.spec.context);
        let tokens = data.context * config.micro_batch.min(config.batch_size);
        let trainable = Trainable::Nothing;
        let options = EngineOptions {
            threads: config.threads,
            isa: Isa::detect(),
            context,
            tokens: tokens.max(256),
            trainable,
            recompute: false,
        };
        let mut engine = Engine::new(model, options)?;
        let set = AdapterSet::init(&mut engine.backend, &engine.model.spec, &adapter, config.seed)?;
        let targets = targets(&set, config);
        let settings = OptimSettings { betas: config.betas, eps: config.eps };
        let optim = optim::of(&config.optimizer)?;
        let state = OptimState::new(&mut engine.backend, optim, settings, &targets)?;
        let trainer = Trainer::new(&mut engine, targets, state, config.clip, config.micro_batch)?;
        let order = Order { seed: config.seed, examples: data.train.len(), batch_size: config.batch_size };
        let steps = config.steps.unwrap_or_else(|| order.steps(config.epochs));
        let mut run = Run {
            config,
            data,
            engine,
            adapter,
            set,
            trainer,
            order,
            plan: Plan::default(),
            step: 0,
            last_loss: None,
            prompt,
        };
        run.plan = run.planned(steps, process_bytes);
        Ok(run)
    }

    /// The plan but for its time.
    fn planned(&self, steps: usize, process_bytes: u64) -> Plan {
        let (config, data) = (self.config, &self.data);
        let (examples, eval) = (data.train_examples(), data.eval_examples());
        let micro_batches = plan::micro_batches(&self.order, steps, config.micro_batch, &examples);
        let activations = plan::activations(&self.engine, &[&self.set], &micro_batches, &eval);
        let trained = self.trainer.targets().iter().map(|t| t.param.view.elements() as u64).sum();
        let count = |f: fn(&Example) -> usize| micro_batches.iter().flatten().map(|e| f(e) as u64).sum();
        let evaluations = 2 + config.eval_every.map_or(0, |n| (steps - 1) / n.max(1));
        let eval_tokens: usize = eval.iter().map(|e| e.ids.len()).sum();
        Plan {
            memory: plan::memory(process_bytes, &self.engine, trained, self.trainer.slots(), activations),
            tokens: Tokens {
                data: data.dataset.report.clone(),
                train_examples: data.train.len(),
                eval_examples: eval.len(),
                run_tokens: count(|e| e.ids.len()),
                run_trained_tokens: count(Example::trained_tokens),
                eval_tokens: (evaluations * eval_tokens) as u64,
            },
            time: Time::default(),
            steps,
            trained_parameters: trained,
            base_parameters: self.engine.model.spec.parameters(),
        }
    }

    /// Times the gradients of one micro-batch in the whole arena of the run; the first step zeroes them again.
    fn probe(&mut self) -> Result<Time> {
        self.engine.reserve(self.plan.memory.activations_bytes)?;
        let micro = self.data.first(&self.order, self.config.micro_batch);
        let start = Instant::now();
        let (_, tokens, _) =
            self.trainer.gradients(&mut self.engine, &[&self.set], &micro, 0, self.config.seed)?;
        let tokens_per_second = tokens as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let t = &self.plan.tokens;
        Ok(Time {
            tokens_per_second,
            training_seconds: t.run_tokens as f64 / tokens_per_second,
            evaluation_seconds: t.eval_tokens as f64 / (2.0 * tokens_per_second),
        })
    }

    fn flow(&self) -> planish_compute::Program {
        let b = planish_text::batch(&self.data.first(&self.order, self.config.micro_batch));
        let segments = score::segments(&b);
        self.engine.training_program(&score::ragged(&b, &segments), &[&self.set]).0
    }

    fn announce(&self, events: &mut Events, run_id: &str) -> Result<()> {
        let (spec, model) = (&self.engine.model.spec, &self.engine.model);
        let heads = spec.layers[0].heads;
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let backend = &self.engine.backend;
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
                "config": serde_json::to_value(self.config).unwrap_or(Value::Null),
                "plan": serde_json::to_value(&self.plan).unwrap_or(Value::Null),
            }),
        )
    }

    fn train(
        &mut self,
        dir: &RunDir,
        events: &mut Events,
        cancel: &CancelToken,
        observer: &mut dyn Observer,
    ) -> Result<Tuned> {
        let steps = self.plan.steps;
        let shape = Shape {
            steps,
            warmup: self.config.warmup.unwrap_or(steps / 20),
            max: self.config.lr,
            min: self.config.lr_min,
        };
        let schedule = schedule::of(&self.config.schedule)?;
        let before = self.evaluate(events, observer)?;
        self.sample(events, cancel, observer)?;
        let mut outcome = Outcome::Completed;
        while self.step < steps {
            if cancel.is_cancelled() {
                outcome = Outcome::Interrupted;
                break;
            }
            if let Err(e) = self.one_step(schedule.rate(&shape, self.step), events, observer) {
                // The weights are those of the last good step: they are kept.
                if e.kind() == Kind::Diverged && self.step > 0 {
                    self.write(dir)?;
                }
                return Err(e);
            }
            let due = |every: Option<usize>| every.is_some_and(|n| self.step.is_multiple_of(n.max(1)));
            let (eval, sample) = (due(self.config.eval_every), due(self.config.sample_every));
            if eval && self.step < steps {
                self.evaluate(events, observer)?;
            }
            if sample && self.step < steps {
                self.sample(events, cancel, observer)?;
            }
        }
        self.write(dir)?;
        if outcome == Outcome::Interrupted {
            return Ok(self.tuned(outcome, Some(dir)));
        }
        let after = self.evaluate(events, observer)?;
        self.sample(events, cancel, observer)?;
        Ok(Tuned { eval: before.zip(after), ..self.tuned(outcome, Some(dir)) })
    }

    fn one_step(&mut self, lr: f64, events: &mut Events, observer: &mut dyn Observer) -> Result<()> {
        let start = Instant::now();
        let examples = self.data.step(&self.order, self.step);
        let set = [&self.set];
        let report = self.trainer.step(&mut self.engine, &set, &examples, self.step, lr, self.config.seed)?;
        self.step += 1;
        self.last_loss = Some(report.loss);
        let wall_us = start.elapsed().as_micros() as u64;
        events.append(
            "step",
            Some(self.step),
            json!({"phase": "train", "loss": report.loss, "lr": report.lr, "tokens": report.tokens,
                   "trained": report.trained, "grad_norm": report.grad_norm, "wall_us": wall_us}),
        )?;
        observer.step(self.step, self.plan.steps, &report);
        Ok(())
    }

    fn evaluate(&mut self, events: &mut Events, observer: &mut dyn Observer) -> Result<Option<Summary>> {
        let examples = self.data.eval_examples();
        if examples.is_empty() {
            return Ok(None);
        }
        let n = examples.len();
        // A model that was sound before the first step and is not any more has diverged.
        let trained = self.step > 0;
        let summary = score::examples(&mut self.engine, examples, &[&self.set])
            .map_err(|e| if trained && e.code() == "not finite" { e.with_kind(Kind::Diverged) } else { e })?;
        events.append(
            "eval",
            Some(self.step),
            json!({"phase": "eval", "name": "held-out", "loss": summary.loss(), "ppl": summary.perplexity(),
                   "samples": n, "extra": {"tokens": summary.tokens}}),
        )?;
        observer.eval(self.step, &summary);
        Ok(Some(summary))
    }

    fn sample(
        &mut self,
        events: &mut Events,
        cancel: &CancelToken,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let model = self.engine.model.clone();
        let Some(tokenizer) = model.tokenizer.as_ref().filter(|_| !self.prompt.is_empty()) else {
            return Ok(());
        };
        let set = [&self.set];
        let mut session = Session::new(&mut self.engine, &set)?;
        let mut sampler = Sampler::new(SamplerOptions::default())?;
        let tokens = self.config.sample_tokens.min(session.room().saturating_sub(self.prompt.len()));
        let stop = Stop { tokens, ..Stop::default() };
        let out = generate(&mut session, &self.prompt, &mut sampler, &stop, cancel, &mut |_| {})?;
        drop(session);
        let prompt = tokenizer.decode(&self.prompt);
        events.append(
            "sample",
            Some(self.step),
            json!({"phase": "decode", "prompt": prompt, "text": out.text}),
        )?;
        observer.sample(self.step, &prompt, &out.text);
        Ok(())
    }

    /// Adapter GGUF, PEFT directory and Modelfile.
    fn write(&self, dir: &RunDir) -> Result<()> {
        let file = AdapterFile::from_set(&self.engine, &self.set, &self.adapter);
        let weights = dir.weights(self.step);
        file.write_gguf(&self.engine.model, &weights, &Provenance::default())?;
        dir.set_latest(self.step)?;
        file.write_peft(&self.engine.model, &dir.peft())?;
        let model = &self.engine.model;
        // The base may lie anywhere, so its path is absolute; the adapter lies in the run.
        let from = std::path::absolute(&model.path).unwrap_or_else(|_| model.path.clone());
        let options = ModelfileOptions {
            from: &from.to_string_lossy(),
            adapter: Some(&format!("./weights/step_{}.gguf", self.step)),
            num_ctx: model.spec.context,
        };
        dir.write_text("Modelfile", &modelfile(model, &options)?)
    }

    fn tuned(&self, outcome: Outcome, dir: Option<&RunDir>) -> Tuned {
        Tuned {
            outcome,
            steps: self.step,
            final_loss: self.last_loss,
            eval: None,
            peak_bytes: process::peak_resident_bytes(),
            planned_bytes: self.plan.memory.total_bytes,
            adapter: dir.map(|d| d.weights(self.step)),
            peft: dir.map(RunDir::peft),
        }
    }
}

/// Every matrix of the adapter, with the weight decay that applies to it.
fn targets(set: &AdapterSet, config: &TuneConfig) -> Vec<Target> {
    let decay = |rows: usize| match config.decay {
        Decay::Matrices if rows == 1 => 0.0,
        _ => config.weight_decay as f32,
    };
    set.pairs()
        .flat_map(|(id, pair)| [(id, "a", pair.a), (id, "b", pair.b)])
        .map(|(id, half, param)| Target {
            name: format!("blk.{}.{}.lora_{half}", id.layer, id.role.name()),
            param,
            weight_decay: decay(param.view.rows),
        })
        .collect()
}
