//! Everything a run depends on, as plain data; stored in the run directory as config.toml.

mod check;
mod lora;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use check::check_steps;
use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_engine::Precision;
use planish_store::fs;
use planish_text::LengthPolicy;
use planish_text::source::is_stdin;
use serde::{Deserialize, Serialize};

use crate::optim::{self, OptimSettings};
use crate::schedule::{self, Shape};
use crate::scratch::{ModelConfig, preset};

/// While the newest checkpoint is being written, the one before it is what can be relied on.
const MIN_KEEP: usize = 2;
/// Highest learning rates where none is given.
const ADAPTER_LR: f64 = 5e-4;
const FULL_LR: f64 = 2e-5;

/// Which tensors weight decay applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Matrices alone, the usual choice.
    Matrices,
    /// Every trained tensor.
    All,
}

/// How many examples are held out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvalSplit {
    /// This share of the data, at least one example.
    Fraction(f64),
    /// This number of examples.
    Count(usize),
}

impl EvalSplit {
    /// Examples held out of `n`; at least one example stays for training.
    pub fn count(self, n: usize) -> usize {
        let wanted = match self {
            EvalSplit::Fraction(f) if f <= 0.0 => 0,
            EvalSplit::Fraction(f) => ((n as f64 * f).round() as usize).max(1),
            EvalSplit::Count(c) => c,
        };
        wanted.min(n.saturating_sub(1))
    }
}

/// How much memory the run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryLimit {
    /// What is free when it starts.
    Auto,
    /// This many bytes.
    Bytes(u64),
}

/// What a loss or gradient that is not finite leads to. The weights are never updated with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonfinite {
    /// The run ends.
    Stop,
    /// The step is left out; after more than this many in a row the run ends.
    Skip(usize),
}

/// A run. [`RunConfig::default`] is the one table of defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The model that is trained: GGUF file or Hugging Face directory. Of a run that trains a new model, its first file.
    pub base: PathBuf,
    /// Training data: files, patterns of files, or `-` for standard input; none for the built-in corpus, which only a new
    /// model is trained on.
    pub data: Vec<PathBuf>,
    /// Held-out data; without it `eval_split` of the training data.
    pub eval_data: Vec<PathBuf>,
    /// Share or number of examples held out.
    pub eval_split: EvalSplit,
    /// A directory where tokens are kept from one run to the next.
    pub cache: Option<PathBuf>,
    /// Train every weight instead of an adapter.
    pub full: bool,
    /// With `full`: patterns of tensors' names, with `*` for any characters, that stay as they are.
    pub freeze: Vec<String>,
    /// With `full`: patterns of the names of those that are trained; without one all are.
    pub train: Vec<String>,
    /// An adapter that training starts from.
    pub init_adapter: Option<PathBuf>,
    /// LoRA rank.
    pub rank: usize,
    /// LoRA alpha; the scale is alpha / rank.
    pub alpha: f32,
    /// Linear maps that get a pair: names separated by commas, or `all`.
    pub targets: String,
    /// Blocks whose matrices get a pair: numbers and ranges as in `8-15,20`; without it all.
    pub layers: Option<String>,
    /// Targets with another rank.
    pub rank_pattern: BTreeMap<String, usize>,
    /// Targets with another alpha.
    pub alpha_pattern: BTreeMap<String, f32>,
    /// Scale alpha / sqrt(rank).
    pub rslora: bool,
    /// Dropout of the adapters' input.
    pub dropout: f32,
    /// Train the norms of adapted rows apart from their directions.
    pub dora: bool,
    /// What the pairs are before the first step: `zero` or `pissa`.
    pub init_lora: String,
    /// Learning rate of every B as a multiple of that of A (LoRA+); without it they are the same.
    pub loraplus_ratio: Option<f64>,
    /// Noise on embeddings while training, +-neftune / sqrt(tokens of the sequence * width).
    pub neftune: Option<f32>,
    /// Optimizer steps; without it `epochs` decides.
    pub steps: Option<usize>,
    /// Passes over the training data.
    pub epochs: f64,
    /// Sequences of an optimizer step.
    pub batch_size: usize,
    /// Sequences in memory at one time.
    pub micro_batch: usize,
    /// Longest sequence in tokens; without it the longest example, at most the model's context.
    pub context: Option<usize>,
    /// What to do with longer examples.
    pub max_length_policy: LengthPolicy,
    /// Pack whole examples into sequences of up to `context` tokens, in which none sees another.
    pub pack: bool,
    /// What matrices are multiplied as: f32, bf16, or `auto`, which is bf16 where the machine multiplies it faster.
    pub precision: String,
    /// Forget a layer's activations after its forward pass, and compute them again in the backward pass.
    pub recompute: bool,
    /// With a limit, `micro_batch` and `recompute` are chosen so that the run fits.
    pub memory: Option<MemoryLimit>,
    /// Highest learning rate; without it 5e-4 for an adapter, 2e-5 for all weights, the preset's for a new model.
    pub lr: Option<f64>,
    /// Factors on the learning rate of tensors by patterns of their names; those of all that match are multiplied.
    pub lr_groups: BTreeMap<String, f64>,
    /// Lowest learning rate, reached by the last step.
    pub lr_min: f64,
    /// A line of SCHEDULES.
    pub schedule: String,
    /// Steps of linear warm-up; without it a twentieth of all steps.
    pub warmup: Option<usize>,
    /// How often a schedule with restarts falls; without it 4.
    pub cycles: Option<usize>,
    /// The share of all steps in which a schedule that is stable before falls; without it 0.2.
    pub decay_share: Option<f64>,
    /// A line of OPTIMS.
    pub optimizer: String,
    /// First and second moment decay; without it what is usual for the optimizer.
    pub betas: Option<(f64, f64)>,
    /// What stays of the sum of earlier gradients; without it what is usual for the optimizer.
    pub momentum: Option<f64>,
    /// Whether SGD looks at that sum one step ahead.
    pub nesterov: bool,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// What it applies to.
    pub decay: Decay,
    /// Largest global gradient norm; 0 never clips.
    pub clip: f64,
    /// Keeps an average of the trained weights, in which the old average has this share at each step.
    pub ema: Option<f64>,
    /// What becomes of a step whose loss or gradient is not finite.
    pub on_nonfinite: OnNonfinite,
    /// Seed of initial values, order, split and dropout.
    pub seed: u64,
    /// Worker threads.
    pub threads: usize,
    /// Steps between evaluations; without it only before and after.
    pub eval_every: Option<usize>,
    /// Ends the run after this many evaluations without a lower held-out loss.
    pub early_stop: Option<usize>,
    /// Steps between checkpoints; without it a tenth of all steps.
    pub save_every: Option<usize>,
    /// Checkpoints that are kept, at least 2.
    pub keep: usize,
    /// Steps between reports of the gradient of each tensor; without it none.
    pub grad_every: Option<usize>,
    /// Steps between reports of how far each tensor is from where it began; without it none.
    pub drift_every: Option<usize>,
    /// Steps between samples; without it only before and after.
    pub sample_every: Option<usize>,
    /// Prompt of the samples; without it the prompt of the first held-out example.
    pub sample_prompt: Option<String>,
    /// Tokens of a sample.
    pub sample_tokens: usize,
    /// Temperature of the samples; 0 takes the most probable token.
    pub sample_temperature: f32,
    /// The new model that the run trains, instead of one that is there already.
    pub model: Option<ModelConfig>,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            base: PathBuf::new(),
            data: Vec::new(),
            eval_data: Vec::new(),
            eval_split: EvalSplit::Fraction(0.05),
            cache: None,
            full: false,
            freeze: Vec::new(),
            train: Vec::new(),
            init_adapter: None,
            rank: 16,
            alpha: 32.0,
            targets: "all".into(),
            layers: None,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            rslora: false,
            dropout: 0.0,
            dora: false,
            init_lora: "zero".into(),
            loraplus_ratio: None,
            neftune: None,
            steps: None,
            epochs: 1.0,
            batch_size: 4,
            micro_batch: 2,
            context: None,
            max_length_policy: LengthPolicy::Error,
            pack: false,
            precision: "auto".into(),
            recompute: false,
            memory: None,
            lr: None,
            lr_groups: BTreeMap::new(),
            lr_min: 0.0,
            schedule: "cosine".into(),
            warmup: None,
            cycles: None,
            decay_share: None,
            optimizer: "adamw".into(),
            betas: None,
            momentum: None,
            nesterov: false,
            eps: 1e-8,
            weight_decay: 0.0,
            decay: Decay::Matrices,
            clip: 1.0,
            ema: None,
            on_nonfinite: OnNonfinite::Stop,
            seed: 0,
            threads: 1,
            eval_every: None,
            early_stop: None,
            save_every: None,
            keep: MIN_KEEP,
            grad_every: None,
            drift_every: None,
            sample_every: None,
            sample_prompt: None,
            sample_tokens: 64,
            sample_temperature: 0.0,
            model: None,
        }
    }
}

impl RunConfig {
    /// The usual settings of a run that trains a new model of this preset.
    ///
    /// # Errors
    /// Kind `Usage` for an unknown preset.
    pub fn of_new_model(preset: &str) -> Result<RunConfig> {
        let p = preset::of(preset)?;
        Ok(RunConfig {
            full: true,
            steps: Some(p.steps),
            batch_size: p.batch_size,
            micro_batch: p.batch_size,
            optimizer: p.optimizer.into(),
            schedule: p.schedule.into(),
            betas: Some((0.9, 0.95)),
            weight_decay: 0.1,
            max_length_policy: LengthPolicy::Split,
            sample_tokens: 100,
            sample_temperature: 0.5,
            model: Some(ModelConfig { preset: preset.into(), ..ModelConfig::default() }),
            ..RunConfig::default()
        })
    }

    /// The text of a config.toml.
    ///
    /// # Errors
    /// `config` for a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self)
            .map_err(|e| Error::usage("config", "the configuration cannot be stored").with_source(e))
    }

    /// The highest learning rate.
    pub fn peak_lr(&self) -> f64 {
        let preset = self.model.as_ref().and_then(|m| preset::of(&m.preset).ok());
        let usual = match preset {
            Some(p) => p.lr,
            None if self.full => FULL_LR,
            None => ADAPTER_LR,
        };
        self.lr.unwrap_or_else(|| usual * optim::of(&self.optimizer).map_or(1.0, |o| o.rate))
    }

    /// The learning rates of a run of so many steps.
    pub fn shape(&self, steps: usize) -> Shape {
        Shape {
            steps,
            warmup: self.warmup.unwrap_or(steps / 20),
            max: self.peak_lr(),
            min: self.lr_min,
            cycles: self.cycles.unwrap_or(Shape::CYCLES),
            decay_share: self.decay_share.unwrap_or(Shape::DECAY_SHARE),
        }
    }

    /// The optimizer's settings: the user's, else the usual ones.
    ///
    /// # Errors
    /// Kind `Usage` for an unknown optimizer.
    pub fn optim_settings(&self) -> Result<OptimSettings> {
        let usual = optim::of(&self.optimizer)?.usual;
        Ok(OptimSettings {
            betas: self.betas.unwrap_or(usual.betas),
            momentum: self.momentum.unwrap_or(usual.momentum),
            eps: self.eps,
            nesterov: self.nesterov,
        })
    }

    /// The same settings with rate, precision and those of optimizer and schedule written out, so that a run's file
    /// says what they were.
    ///
    /// # Errors
    /// Kind `Usage` for an unknown optimizer, schedule or precision.
    pub fn resolved(&self) -> Result<RunConfig> {
        let (optim, schedule) = (optim::of(&self.optimizer)?, schedule::of(&self.schedule)?);
        let (settings, shape) = (self.optim_settings()?, self.shape(1));
        Ok(RunConfig {
            betas: optim.uses.contains(&"betas").then_some(settings.betas),
            momentum: optim.uses.contains(&"momentum").then_some(settings.momentum),
            cycles: schedule.uses.contains(&"cycles").then_some(shape.cycles),
            decay_share: schedule.uses.contains(&"decay-share").then_some(shape.decay_share),
            lr: Some(self.peak_lr()),
            precision: Precision::of(&self.precision, Isa::detect())?.name().into(),
            // A run may be gone on with from anywhere.
            base: absolute(&self.base),
            data: self.data.iter().map(|p| absolute(p)).collect(),
            eval_data: self.eval_data.iter().map(|p| absolute(p)).collect(),
            model: self.model.as_ref().map(ModelConfig::resolved).transpose()?,
            cache: self.cache.as_deref().map(absolute),
            ..self.clone()
        })
    }
}

/// Standard input is nowhere else.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    if is_stdin(path) { path.to_path_buf() } else { fs::absolute(path) }
}
