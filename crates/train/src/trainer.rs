//! The optimizer step: gradients of a batch in micro-batches, their norm, clipping, update.

use planish_base::{Error, Kind, Result, TypeId};
use planish_compute::call::{SUM_BLOCK, SumSquares, Zero};
use planish_compute::{Backend, View};
use planish_engine::{Engine, NonFinite, score};
use planish_model::{AdapterSet, Ragged};
use planish_text::{Example, batch};

use crate::ema::Ema;
use crate::optim::{OptimState, Target, flat};
use crate::sequence::{self, Sequence};

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss over the trained tokens of the whole step, before the update.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens processed.
    pub tokens: usize,
    /// Tokens in the loss.
    pub trained: usize,
}

/// What the gradients of a step were computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradients {
    /// Sum of the losses of the trained tokens, in nats.
    pub loss_sum: f64,
    /// Tokens processed.
    pub tokens: usize,
    /// Tokens in the loss.
    pub trained: usize,
}

/// Trains a list of tensors of a model.
pub struct Trainer {
    targets: Vec<Target>,
    optimizer: OptimState,
    ema: Option<Ema>,
    sums: View,
    clip: f64,
    micro_batch: usize,
    /// Updates so far.
    updates: u64,
}

impl Trainer {
    /// `clip` is the largest gradient norm, 0 for none; `micro_batch` sequences are in memory at one time.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn new(
        engine: &mut Engine,
        targets: Vec<Target>,
        optimizer: OptimState,
        clip: f64,
        micro_batch: usize,
    ) -> Result<Trainer> {
        let blocks = targets.iter().map(|t| t.param.view.elements().div_ceil(SUM_BLOCK)).sum::<usize>();
        let sums = View::new(engine.backend.alloc((blocks * 8) as u64)?, 0, 1, blocks, TypeId::F64);
        Ok(Trainer { targets, optimizer, ema: None, sums, clip, micro_batch, updates: 0 })
    }

    /// Keeps an average of the weights from now on; see [`crate::RunConfig::ema`].
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn keep_average(&mut self, engine: &mut Engine, decay: f64) -> Result<()> {
        self.ema = Some(Ema::new(&mut engine.backend, &self.targets, decay)?);
        Ok(())
    }

    /// The averages of the trained values by name; none where none are kept.
    pub fn averages(&self) -> Vec<(String, View)> {
        let averages = self.ema.iter().flat_map(Ema::averages);
        self.targets.iter().zip(averages).map(|(t, view)| (t.name.clone(), *view)).collect()
    }

    /// Calls `f` while the weights are their averages. Where none are kept nothing is called.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_average(&self, engine: &mut Engine, f: impl FnOnce(&Engine) -> Result<()>) -> Result<()> {
        let Some(ema) = &self.ema else { return Ok(()) };
        ema.swap(&mut engine.backend, &self.targets);
        let result = f(engine);
        ema.swap(&mut engine.backend, &self.targets);
        result
    }

    /// The trained tensors.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Trained values by name.
    pub fn weights(&self) -> Vec<(String, View)> {
        self.targets.iter().map(|t| (t.name.clone(), t.param.view)).collect()
    }

    /// The optimizer's slots that outlive a step by name: that of the tensor, and that of the slot.
    pub fn slots(&self) -> Vec<(String, View)> {
        self.optimizer.slots(&self.targets)
    }

    /// Bytes of all of the optimizer's slots.
    pub fn slot_bytes(&self) -> u64 {
        self.optimizer.slot_bytes()
    }

    /// Bytes of arena that an update needs.
    pub fn arena_bytes(&self) -> u64 {
        self.optimizer.arena_bytes()
    }

    /// Updates so far: what the optimizer's bias correction counts.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Goes on after this many updates.
    pub fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Sequences in memory at one time.
    pub fn set_micro_batch(&mut self, micro_batch: usize) {
        self.micro_batch = micro_batch;
    }

    /// Computes the gradients of the mean loss over all trained tokens of `sequences`, each an example or a pack.
    ///
    /// # Errors
    /// Kind `Resource` without memory for the activations.
    pub fn gradients<'a, S: Sequence<'a>>(
        &self,
        engine: &mut Engine,
        adapters: &[&AdapterSet],
        sequences: &[S],
        step: usize,
        seed: u64,
    ) -> Result<Gradients> {
        let mut sum = Gradients { loss_sum: 0.0, tokens: 0, trained: trained_tokens(sequences) };
        self.passes(engine, adapters, sequences, step, seed, |engine, batch, normaliser, _| {
            let losses = engine.train_batch(batch, adapters, normaliser)?;
            sum.loss_sum += losses.iter().map(|l| f64::from(*l)).sum::<f64>();
            sum.tokens += batch.ids.len();
            Ok(None::<()>)
        })?;
        Ok(sum)
    }

    /// The first value of a step's passes that is not finite, with the micro-batch that it comes up in.
    fn first_nonfinite<'a, S: Sequence<'a>>(
        &self,
        engine: &mut Engine,
        adapters: &[&AdapterSet],
        sequences: &[S],
        step: usize,
        seed: u64,
    ) -> Result<Option<(NonFinite, Vec<&'a Example>)>> {
        self.passes(engine, adapters, sequences, step, seed, |engine, batch, normaliser, micro| {
            let found = engine.first_nonfinite(batch, adapters, normaliser)?;
            Ok(found.map(|found| (found, micro.to_vec())))
        })
    }

    /// Zeroes the gradients and calls `pass` with each micro-batch of a step, the normaliser of its losses, and its
    /// examples, until it returns something.
    fn passes<'a, S: Sequence<'a>, T>(
        &self,
        engine: &mut Engine,
        adapters: &[&AdapterSet],
        sequences: &[S],
        step: usize,
        seed: u64,
        mut pass: impl FnMut(&mut Engine, &Ragged, f32, &[&'a Example]) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for t in &self.targets {
            engine.backend.exec(&Zero { x: t.param.grad.expect("a target has a gradient") }.into());
        }
        // Makes sums of losses and gradients means over the trained tokens of the whole step.
        let normaliser = (1.0 / trained_tokens(sequences).max(1) as f64) as f32;
        for (i, micro) in sequences.chunks(self.micro_batch).enumerate() {
            for key in adapters.iter().filter_map(|a| a.dropout_key()).chain(engine.noise_key()) {
                let words = [seed as u32, (seed >> 32) as u32, step as u32, i as u32];
                engine.backend.upload_u32(&key, &words);
            }
            let micro = sequence::flat(micro);
            let b = batch(&micro);
            let segments = score::segments(&b);
            if let Some(result) = pass(engine, &score::ragged(&b, &segments), normaliser, &micro)? {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// Norm of all gradients together.
    pub fn grad_norm(&self, engine: &mut Engine) -> f64 {
        let mut start = 0;
        for t in &self.targets {
            let grad = flat(t.param.grad.expect("a target has a gradient"));
            let blocks = grad.cols.div_ceil(SUM_BLOCK);
            engine.backend.exec(&SumSquares { x: grad, out: self.sums.columns(start, blocks) }.into());
            start += blocks;
        }
        engine.backend.download_f64(&self.sums).iter().sum::<f64>().sqrt()
    }

    /// The seconds of an update by the gradients as they are. For measurements: it is not counted.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub(crate) fn time_update(&self, engine: &mut Engine, lr: f64) -> Result<f64> {
        let start = std::time::Instant::now();
        self.optimizer.step(&mut engine.backend, lr, self.updates + 1, 1.0)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// One optimizer step, `step` counted from 0. Nothing is updated when the loss or the gradient is not finite.
    ///
    /// # Errors
    /// Kind `Diverged` for a loss or gradient that is not finite, naming the examples; kind `Resource` without memory.
    pub fn step<'a, S: Sequence<'a>>(
        &mut self,
        engine: &mut Engine,
        adapters: &[&AdapterSet],
        sequences: &[S],
        step: usize,
        lr: f64,
        seed: u64,
    ) -> Result<StepReport> {
        self.optimizer.begin(&mut engine.backend, lr, self.updates + 1);
        let report = self.update(engine, adapters, sequences, step, lr, seed);
        if report.is_err() {
            self.optimizer.abandon(&mut engine.backend);
        }
        report
    }

    fn update<'a, S: Sequence<'a>>(
        &mut self,
        engine: &mut Engine,
        adapters: &[&AdapterSet],
        sequences: &[S],
        step: usize,
        lr: f64,
        seed: u64,
    ) -> Result<StepReport> {
        let Gradients { loss_sum, tokens, trained } =
            self.gradients(engine, adapters, sequences, step, seed)?;
        let (loss, grad_norm) = (loss_sum / trained.max(1) as f64, self.grad_norm(engine));
        if !loss.is_finite() || !grad_norm.is_finite() {
            let first = self.first_nonfinite(engine, adapters, sequences, step, seed)?;
            return Err(diverged(step, loss, grad_norm, &sequence::flat(sequences), first));
        }
        // The small term is PyTorch's, so that clipped runs agree.
        let clip = if self.clip > 0.0 { (self.clip / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        engine.reserve(self.optimizer.arena_bytes())?;
        self.optimizer.step(&mut engine.backend, lr, self.updates + 1, clip)?;
        self.updates += 1;
        if let Some(ema) = &self.ema {
            ema.update(&mut engine.backend, self.updates);
        }
        Ok(StepReport { loss, grad_norm, lr, tokens, trained })
    }
}

fn trained_tokens<'a, S: Sequence<'a>>(sequences: &[S]) -> usize {
    sequences.iter().map(sequence::trained_tokens).sum()
}

fn diverged(
    step: usize,
    loss: f64,
    grad_norm: f64,
    examples: &[&Example],
    first: Option<(NonFinite, Vec<&Example>)>,
) -> Error {
    let places = |e: &[&Example]| e.iter().map(|e| e.place.as_str()).collect::<Vec<_>>().join(", ");
    let place = match &first {
        Some((found, micro)) => format!("first in {found}, on {}", places(micro)),
        None => format!("on {}", places(examples)),
    };
    let step = step + 1;
    let message = format!(
        "step {step}: loss {loss}, gradient norm {grad_norm}; {place}; the weights are as before the step"
    );
    Error::new(Kind::Diverged, "not finite", message)
        .with_hint("try a lower --lr, look at these examples, or leave such steps out: --on-nonfinite skip:N")
}
