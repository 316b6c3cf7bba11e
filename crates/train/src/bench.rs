//! How fast a training step is: what `planish bench` prints of training.
//!
//! The step is that of a run: forward and backward pass, norm of the gradients, update. The data are random ids, every one
//! of them trained; the loss does not matter.

use std::time::Instant;

use planish_base::Result;
use planish_compute::{Isa, Program, Stage, profile};
use planish_engine::{Engine, EngineOptions, Model, Precision, bench, score};
use planish_store::process;
use planish_text::Example;

use crate::config::RunConfig;
use crate::optim::{self, OptimState};
use crate::plan::Room;
use crate::recipe::Recipe;
use crate::trainer::Trainer;

/// What helps where a step does not fit.
const FITTING: &str = "fewer sequences or a shorter context need less";

/// A model that is ready to be trained on sequences of random ids.
pub struct Training {
    engine: Engine,
    recipe: Recipe,
    trainer: Trainer,
    examples: Vec<Example>,
    lr: f64,
    steps: usize,
}

/// The calls of one operation in one part of a step.
#[derive(Clone, Debug)]
pub struct OpSeconds {
    /// `forward`, `recomputed`, `backward` or `update`.
    pub part: &'static str,
    /// The operation; of a product the sides m, k, n and the type of its second operand.
    pub op: String,
    /// How many calls.
    pub calls: usize,
    /// Their time together.
    pub seconds: f64,
    /// Multiplications of matrix products; 0 for other operations.
    pub multiplications: u64,
}

impl Training {
    /// Loads what a run with these settings loads, for steps of `config.batch_size` sequences of `length` tokens, all of
    /// them in memory at one time.
    ///
    /// # Errors
    /// Kind `Usage` for settings and lengths out of range; kind `Resource` for what does not fit, before it is taken.
    pub fn new(model: Model, config: &RunConfig, length: usize) -> Result<Training> {
        config.check()?;
        let (sequences, process_bytes) = (config.batch_size, process::resident_bytes());
        let optim = optim::of(&config.optimizer)?;
        let (trained, tensors) = (Recipe::trained(&model, config)?, Recipe::tensors(&model, config)?);
        // At the least: a pass keeps what each block starts from.
        let width = (model.spec.layers.len() * model.spec.width * 4) as u64;
        let kept = (sequences as u64).saturating_mul(length as u64).saturating_mul(width);
        let state = kept.saturating_add(process_bytes + 8 * trained + optim.slot_bytes(&tensors));
        let room = Room::new(config);
        if !room.holds(state, process_bytes) {
            return Err(room.refusal(state, process_bytes, None).with_hint(FITTING));
        }
        let isa = Isa::detect();
        let options = EngineOptions {
            threads: config.threads,
            isa,
            context: length,
            tokens: sequences * length,
            trainable: Recipe::trainable(&model, config)?,
            recompute: config.recompute,
            precision: Precision::of(&config.precision, isa)?,
        };
        let mut engine = Engine::new(model, options)?;
        let recipe = Recipe::new(&mut engine, config)?;
        let targets = recipe.targets(&engine, config);
        let state = OptimState::new(&mut engine.backend, optim, config.optim_settings()?, &targets)?;
        let trainer = Trainer::new(&mut engine, targets, state, config.clip, sequences)?;
        let example = |i: usize| Example {
            ids: bench::random_ids(&engine.model.spec, length, i as u32),
            trained: (0..length).map(|i| i > 0).collect(),
            place: format!("random sequence {i}"),
        };
        let examples = (0..sequences).map(example).collect();
        Ok(Training { engine, recipe, trainer, examples, lr: config.peak_lr(), steps: 0 })
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.examples.iter().map(|e| e.ids.len()).sum()
    }

    /// Multiplications of the matrix products of a step's passes.
    pub fn multiplications(&self) -> u64 {
        self.program().calls().iter().map(profile::multiplications).sum()
    }

    /// Makes a step and returns its seconds; the first one also touches the memory.
    ///
    /// # Errors
    /// Kind `Resource` without memory; kind `Diverged` when the model's weights are no numbers.
    pub fn step(&mut self) -> Result<f64> {
        let (adapters, examples) = (self.recipe.adapters(), self.examples.iter().collect::<Vec<_>>());
        let start = Instant::now();
        self.trainer.step(&mut self.engine, &adapters, &examples, self.steps, self.lr, 0)?;
        self.steps += 1;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Where the time of a step goes, what takes longest first. Timing every call costs about a microsecond a call.
    ///
    /// # Errors
    /// As [`Training::step`].
    pub fn ops(&mut self) -> Result<Vec<OpSeconds>> {
        // Fills the inputs, so that the program below runs on a batch.
        self.step()?;
        let program = self.program();
        self.engine.reserve(program.arena_bytes())?;
        let mut ops: Vec<OpSeconds> =
            profile::profile(&mut self.engine.backend, &program).into_iter().map(of_pass).collect();
        let mut update = |op: &str, seconds| {
            let (op, calls) = (op.to_owned(), self.trainer.targets().len());
            ops.push(OpSeconds { part: "update", op, calls, seconds, multiplications: 0 });
        };
        let start = Instant::now();
        self.trainer.grad_norm(&mut self.engine);
        update("SumSquares", start.elapsed().as_secs_f64());
        update("optimizer", self.trainer.time_update(&mut self.engine, self.lr)?);
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(ops)
    }

    fn program(&self) -> Program {
        let batch = planish_text::batch(&self.examples.iter().collect::<Vec<_>>());
        let segments = score::segments(&batch);
        self.engine.training_program(&score::ragged(&batch, &segments), &self.recipe.adapters()).0
    }
}

fn of_pass(time: profile::OpTime) -> OpSeconds {
    let part = match time.stage {
        Stage::Forward => "forward",
        Stage::Recomputed => "recomputed",
        Stage::Backward => "backward",
    };
    let profile::OpTime { op, calls, multiplications, .. } = time;
    OpSeconds { part, op, calls, seconds: time.time.as_secs_f64(), multiplications }
}
