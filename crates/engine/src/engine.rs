//! A model on a backend.

use std::collections::BTreeSet;
use std::sync::Arc;

use planish_base::{Error, Result, TypeId};
use planish_compute::{Backend, CpuBackend, Isa, Program, View};
use planish_model::{AdapterSet, Inputs, Noise, Params, Pass, Ragged, Trainable};
use planish_tape::{Mode, Saved, Tape};

use crate::model::Model;
use crate::precision::Precision;
use crate::room;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Worker threads.
    pub threads: usize,
    /// Instruction set path.
    pub isa: Isa,
    /// Longest sequence.
    pub context: usize,
    /// Most tokens of one pass.
    pub tokens: usize,
    /// Which tensors of the base are trained.
    pub trainable: Trainable,
    /// Computes each block again before its backward pass instead of keeping its activations: less memory, more time,
    /// the same bits.
    pub recompute: bool,
    /// The arithmetic of products of training, scoring and prompts.
    pub precision: Precision,
}

/// A model, its parameters on the CPU, and the buffers of a batch.
pub struct Engine {
    /// What was opened.
    pub model: Arc<Model>,
    /// Memory and execution.
    pub backend: CpuBackend,
    /// Tensors.
    pub params: Params,
    /// Buffers for batches.
    pub inputs: Inputs,
    options: EngineOptions,
    noise: Option<Noise>,
}

impl Engine {
    /// Loads the parameters.
    ///
    /// # Errors
    /// Kind `Usage` for a context beyond the model's; kind `Input` for wrong tensors; kind `Resource` without memory.
    pub fn new(model: Model, options: EngineOptions) -> Result<Engine> {
        model.check_context(options.context)?;
        // The table of rotations is made in host memory and copied.
        let width = model.spec.layers.first().map_or(0, |l| l.heads.width);
        room::check(
            &format!("a context of {} tokens", options.context),
            (options.context * width * 8) as u64,
        )?;
        let mut backend = CpuBackend::new(options.isa, options.threads)?;
        let params = Params::load(
            &mut backend,
            model.arch,
            &model.spec,
            &model.weights,
            &options.trainable,
            options.context,
        )
        .map_err(|e| e.in_file(&model.path))?;
        if options.trainable != Trainable::Nothing {
            // Masters are copies: what they were decoded from need not stay in memory beside them.
            model.release();
        }
        let inputs = Inputs::new(&mut backend, options.tokens)?;
        Ok(Engine { model: Arc::new(model), backend, params, inputs, options, noise: None })
    }

    /// Bytes of the files' tensors that are not trained: what stays mapped.
    pub fn frozen_bytes(&self) -> u64 {
        let trained: BTreeSet<&str> = self.params.trainable().map(|n| n.name.as_str()).collect();
        let weights = &self.model.weights;
        let frozen = weights.entries.iter().filter(|(name, _)| !trained.contains(name.as_str()));
        frozen.map(|(_, e)| weights.bytes(e).len() as u64).sum()
    }

    /// Longest sequence.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Most tokens of one pass.
    pub fn tokens(&self) -> usize {
        self.options.tokens
    }

    /// Whether training passes compute activations again instead of keeping them.
    pub fn recompute(&self) -> bool {
        self.options.recompute
    }

    /// See [`EngineOptions::recompute`]; a plan may compare both.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.options.recompute = recompute;
    }

    /// Adds noise of this strength to embeddings in training passes (Jain et al., 2023).
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn set_noise(&mut self, alpha: f32) -> Result<()> {
        let key = View::new(self.backend.alloc(16)?, 0, 1, 4, TypeId::I32);
        self.noise = Some(Noise { alpha, key });
        Ok(())
    }

    /// Where a training loop puts the key of the noise of a micro-batch: seed low, seed high, step, micro-batch.
    pub fn noise_key(&self) -> Option<View> {
        self.noise.map(|noise| noise.key)
    }

    /// The arithmetic of products of training, scoring and prompts.
    pub fn precision(&self) -> Precision {
        self.options.precision
    }

    /// Refuses ids outside the vocabulary.
    ///
    /// # Errors
    /// `token id`.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let vocab = self.model.spec.vocab;
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(Error::input("token id", format!("token id {id} of a vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }

    /// Makes the arena this large at once, so that it does not grow step by step.
    ///
    /// # Errors
    /// Kind `Resource`, before anything is taken, when so much memory is not free.
    pub fn reserve(&mut self, arena_bytes: u64) -> Result<()> {
        let there = self.backend.arena_bytes();
        if arena_bytes > there {
            room::check("computing", arena_bytes - there)?;
        }
        self.backend.reserve(arena_bytes)
    }

    /// Records the training pass of a batch of this shape: losses of the trained rows, and gradients.
    pub fn training_program(&self, batch: &Ragged, adapters: &[&AdapterSet]) -> (Program, View) {
        let (views, targets) = self.inputs.views(batch);
        let saved = if self.options.recompute { Saved::Recomputed } else { Saved::Kept };
        let mut tape = Tape::new(Mode::Train, self.options.precision.product()).with_saved(saved);
        let pass = Pass::new(&mut tape, views, &self.model.spec, &self.params, adapters, None);
        let mut pass = pass.with_noise(self.noise);
        let hidden = pass.hidden();
        let loss = pass.loss(hidden, &targets);
        let loss = tape.view(loss);
        tape.backward();
        let program = tape.finish();
        let loss = program.view(&loss);
        (program, loss)
    }

    /// Runs one micro-batch forward and backward; gradients are added up. `normaliser` is 1 / trained tokens of the
    /// whole optimizer step. Returns the loss of each trained row, not normalised.
    ///
    /// # Errors
    /// Kind `Resource` without memory for the activations.
    pub fn train_batch(
        &mut self,
        batch: &Ragged,
        adapters: &[&AdapterSet],
        normaliser: f32,
    ) -> Result<Vec<f32>> {
        let (program, loss) = self.training_program(batch, adapters);
        self.run(batch, normaliser, &program)?;
        Ok(self.backend.download_f32(&loss))
    }

    /// Uploads a batch and runs a program recorded for its shape.
    pub(crate) fn run(&mut self, batch: &Ragged, normaliser: f32, program: &Program) -> Result<()> {
        self.reserve(program.arena_bytes())?;
        self.inputs.fill(&mut self.backend, batch, normaliser);
        self.backend.run(program);
        Ok(())
    }
}
