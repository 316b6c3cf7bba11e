//! A run that is ready to train: model, data, trained tensors, optimizer, and the plan of what it will take.

use std::time::Instant;

use planish_base::{Error, Result};
use planish_compute::{Isa, Program};
use planish_engine::{Engine, EngineOptions, Model, Precision, score};
use planish_store::process;
use planish_text::Example;
use planish_text::source::is_stdin;

use crate::config::{RunConfig, check_steps};
use crate::data::{Data, Order};
use crate::identity::Identity;
use crate::optim::{self, OptimState};
use crate::patterns;
use crate::plan::{self, Choice, Packed, Plan, Room, Time, Tokens};
use crate::recipe::Recipe;
use crate::run_dir::RunDir;
use crate::schedule::Shape;
use crate::sequence;
use crate::trainer::Trainer;

/// All that a step needs.
pub(crate) struct Run {
    /// The settings, with what `--memory` chose.
    pub config: RunConfig,
    pub data: Data,
    pub engine: Engine,
    pub recipe: Recipe,
    pub trainer: Trainer,
    pub order: Order,
    pub plan: Plan,
    pub identity: Identity,
    /// Prompt of the samples.
    pub prompt: Vec<u32>,
}

impl Run {
    /// Loads everything for a run that trains `model`, and makes the plan, but for its time.
    ///
    /// # Errors
    /// Kind `Input` for model and data; kind `Resource`, with settings that would fit, for a run that does not.
    pub fn new(config: &RunConfig, model: Model) -> Result<Run> {
        let config = config.resolved()?;
        let data = Data::load(&config, &model)?;
        // Before anything is allocated for the run, so that nothing is counted twice.
        let process_bytes = process::resident_bytes();
        let optim = optim::of(&config.optimizer)?;
        let trained = Recipe::trained(&model, &config)?;
        let room = Room::new(&config);
        let average = if config.ema.is_some() { 4 * trained } else { 0 };
        let slots = optim.slot_bytes(&Recipe::tensors(&model, &config)?);
        let state = process_bytes + 8 * trained + average + slots;
        if !room.holds(state, process_bytes) {
            return Err(room.refusal(state, process_bytes, None));
        }
        let prompt = data.sample_prompt(&config, &model)?;
        let options = options(&config, &data, &model, prompt.len())?;
        let mut engine = Engine::new(model, options)?;
        if let Some(alpha) = config.neftune {
            engine.set_noise(alpha)?;
        }
        let recipe = Recipe::new(&mut engine, &config)?;
        let mut targets = recipe.targets(&engine, &config);
        patterns::scale_rates(&mut targets, &config.lr_groups)?;
        let settings = config.optim_settings()?;
        let state = OptimState::new(&mut engine.backend, optim, settings, &targets)?;
        let mut trainer = Trainer::new(&mut engine, targets, state, config.clip, config.micro_batch)?;
        if let Some(decay) = config.ema {
            trainer.keep_average(&mut engine, decay)?;
        }
        let (examples, batch_size) = (data.sequences().len(), config.batch_size);
        let order = Order { seed: config.seed, examples, batch_size };
        let steps = config.steps.unwrap_or_else(|| order.steps(config.epochs));
        check_steps(steps)?;
        if config.early_stop.is_some() && data.eval_examples().is_empty() {
            return Err(Error::usage("setting", "early-stop needs held-out examples, and there are none")
                .with_hint("give --eval-data, or hold some out with --eval-split"));
        }
        let identity = Identity::new(&engine, &data, trained);
        let precision = engine.precision().name().into();
        let floor = data.floor;
        let plan = Plan { steps, precision, trained_parameters: trained, floor, ..Plan::default() };
        let mut run = Run { config, data, engine, recipe, trainer, order, plan, identity, prompt };
        run.settle(&room, process_bytes)?;
        run.plan.tokens = run.tokens();
        run.plan.base_parameters = run.engine.model.spec.parameters();
        Ok(run)
    }

    /// Takes the first choice of settings that fits; without `--memory` there is only the one that was given.
    fn settle(&mut self, room: &Room, process_bytes: u64) -> Result<()> {
        let choices = plan::choices(&self.config);
        let given = choices[0];
        let mut totals = Vec::new();
        for choice in choices {
            self.take(choice, process_bytes);
            let total = self.plan.memory.total_bytes;
            totals.push(total);
            if room.holds(total, process_bytes) {
                if self.config.memory.is_some() || choice == given {
                    (self.config.micro_batch, self.config.recompute) = (choice.micro_batch, choice.recompute);
                    self.config.memory = None;
                    return Ok(());
                }
                return Err(room.refusal(totals[0], process_bytes, Some(choice)));
            }
        }
        let least = totals.iter().copied().min().unwrap_or(0);
        Err(room.refusal(least, process_bytes, None))
    }

    /// Plans with these settings.
    fn take(&mut self, choice: Choice, process_bytes: u64) {
        self.engine.set_recompute(choice.recompute);
        self.trainer.set_micro_batch(choice.micro_batch);
        (self.plan.micro_batch, self.plan.recompute) = (choice.micro_batch, choice.recompute);
        let micro_batches = self.micro_batches();
        let (adapters, eval) = (self.recipe.adapters(), self.data.eval_examples());
        let activations =
            plan::activations(&self.engine, &adapters, &micro_batches, &eval).max(self.trainer.arena_bytes());
        let export = self.recipe.export_bytes(&self.trainer);
        let memory = plan::memory(
            &self.engine,
            &self.trainer,
            process_bytes,
            activations,
            export,
            self.sample_context(),
            self.config.drift_every.map_or(0, |_| self.recipe.initial_bytes(&self.trainer)),
        );
        self.plan.memory = memory;
    }

    fn micro_batches(&self) -> Vec<Vec<&Example>> {
        plan::micro_batches(&self.order, self.plan.steps, self.plan.micro_batch, &self.data.sequences())
    }

    fn tokens(&self) -> Tokens {
        let (train, eval) = (self.data.sequences(), self.data.eval_examples());
        // Whole passes see every sequence once; what is left of the last one is looked at.
        let drawn = self.plan.steps * self.order.batch_size;
        let (passes, rest) = (drawn / train.len(), drawn % train.len());
        let last = planish_text::order(self.order.seed, passes as u32, train.len());
        let count = |f: fn(&Vec<&Example>) -> usize| -> u64 {
            let whole: usize = train.iter().map(f).sum();
            let part: usize = last[..rest].iter().map(|&i| f(&train[i])).sum();
            (passes * whole + part) as u64
        };
        let packed = self.config.pack.then(|| {
            let (packs, context) = (train.len(), self.data.context);
            let tokens: usize = train.iter().map(sequence::tokens).sum();
            Packed { packs, context, fill: tokens as f64 / (packs * context) as f64 }
        });
        let evaluations = 2 + self.config.eval_every.map_or(0, |n| (self.plan.steps - 1) / n.max(1));
        let eval_tokens: usize = eval.iter().map(|e| e.ids.len()).sum();
        Tokens {
            data: self.data.dataset.report.clone(),
            train_examples: self.data.train.len(),
            eval_examples: eval.len(),
            packed,
            run_tokens: count(|s| sequence::tokens(s)),
            run_trained_tokens: count(|s| sequence::trained_tokens(s)),
            eval_tokens: (evaluations * eval_tokens) as u64,
        }
    }

    /// Keeps what standard input held in the run's directory, where the settings name it from then on: a run that
    /// goes on cannot read it again.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn keep_stdin(&mut self, dir: &RunDir) -> Result<()> {
        let Some(bytes) = self.data.stdin() else { return Ok(()) };
        let path = dir.write_stdin(&bytes)?;
        let data = self.config.data.iter_mut().chain(&mut self.config.eval_data);
        data.filter(|p| is_stdin(p)).for_each(|p| p.clone_from(&path));
        Ok(())
    }

    /// Times the second of two micro-batches in the whole arena of the run: the first one touches the memory. The
    /// first step zeroes the gradients again.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn probe(&mut self) -> Result<Time> {
        self.engine.reserve(self.plan.memory.activations_bytes)?;
        let micro = self.data.first(&self.order, self.config.micro_batch);
        let adapters = self.recipe.adapters();
        let mut gradients =
            || self.trainer.gradients(&mut self.engine, &adapters, &micro, 0, self.config.seed);
        gradients()?;
        let start = Instant::now();
        let tokens = gradients()?.tokens;
        let tokens_per_second = tokens as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let t = &self.plan.tokens;
        Ok(Time {
            tokens_per_second,
            training_seconds: t.run_tokens as f64 / tokens_per_second,
            evaluation_seconds: t.eval_tokens as f64 / (2.0 * tokens_per_second),
        })
    }

    /// The calls of the first training pass.
    pub fn flow(&self) -> Program {
        let b = planish_text::batch(&sequence::flat(&self.data.first(&self.order, self.config.micro_batch)));
        let segments = score::segments(&b);
        self.engine.training_program(&score::ragged(&b, &segments), &self.recipe.adapters()).0
    }

    /// The learning rates.
    pub fn shape(&self) -> Shape {
        self.config.shape(self.plan.steps)
    }

    /// Tokens of a sample with its prompt; 0 where there are none.
    pub fn sample_context(&self) -> usize {
        match self.prompt.len() {
            0 => 0,
            n => (n + self.config.sample_tokens).min(self.engine.context()),
        }
    }

    /// Steps between checkpoints.
    pub fn save_every(&self) -> usize {
        self.config.save_every.unwrap_or(self.plan.steps / 10).max(1)
    }
}

fn options(config: &RunConfig, data: &Data, model: &Model, prompt: usize) -> Result<EngineOptions> {
    let sample_room = prompt + config.sample_tokens;
    let tokens = data.context * config.micro_batch.min(config.batch_size);
    let isa = Isa::detect();
    let precision = Precision::of(&config.precision, isa)?;
    Ok(EngineOptions {
        threads: config.threads,
        isa,
        context: data.context.max(sample_room).min(model.spec.context),
        tokens: tokens.max(256),
        trainable: Recipe::trainable(model, config)?,
        recompute: config.recompute,
        precision,
    })
}
