//! The settings of a run: flag, else file, else default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use planish_base::{Error, Result};
use planish_engine::Precision;
use planish_store::fs;
use planish_text::LengthPolicy;
use planish_train::optim::OptimSettings;
use planish_train::{Decay, EvalSplit, MemoryLimit, OPTIMS, OnNonfinite, RunConfig, SCHEDULES, Shape};

use crate::env;
use crate::flags::{available_threads, length_policy};

/// A larger file is not a configuration.
const CONFIG_LIMIT: u64 = 1 << 20;

/// Flags of the settings; what is absent comes from the file or from the defaults.
#[derive(clap::Args)]
pub struct Settings {
    /// A file of settings, such as the config.toml of a run; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Tensors that stay as they are, by name with `*` for any characters, as in 'token_embd.*' or '*norm*'; may be given
    /// more than once. Only where the model's own weights are trained
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,

    /// Train only tensors of these names; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    train: Vec<String>,

    /// Optimizer steps [default: as many as --epochs are]
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<usize>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Passes over the data", table().epochs))]
    epochs: Option<f64>,

    #[arg(long, value_name = "N")]
    #[arg(help = or_default("Sequences of an optimizer step", table().batch_size))]
    batch_size: Option<usize>,

    #[arg(long, value_name = "N")]
    #[arg(help = or_default("Sequences in memory at one time; changes memory and speed, not the result", table().micro_batch))]
    micro_batch: Option<usize>,

    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Precision::NAMES))]
    #[arg(help = or_default("What matrices are multiplied as; auto is bf16 where the machine multiplies it faster", table().precision))]
    precision: Option<String>,

    /// Keep fewer activations and compute them again in the backward pass: less memory, more time, the same result
    #[arg(long)]
    recompute: bool,

    /// Choose --micro-batch and --recompute so that the run takes at most this much memory, as in 4GB; `auto`: what
    /// is free
    #[arg(long, value_name = "auto|BYTES", value_parser = memory)]
    memory: Option<MemoryLimit>,

    /// Longest example in tokens [default: the longest of the data, within the model's own context]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,

    /// What becomes of longer examples [default: error]
    #[arg(long, value_name = "POLICY", value_parser = length_policy())]
    max_length_policy: Option<LengthPolicy>,

    /// Pack whole examples into sequences of up to --context tokens; none of them sees another
    #[arg(long)]
    pack: bool,

    /// Keep the tokens of the data in this directory, and take them from there the next time
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Highest learning rate", learning_rates()))]
    lr: Option<f64>,

    /// Factors on the learning rate of tensors by name, with `*` for any characters, as in 'token_embd.*=0.1,*norm*=0.5';
    /// a tensor that several match has the product
    #[arg(long, value_name = "PATTERN=X,..", value_parser = pairs::<f64>)]
    lr_groups: Option<BTreeMap<String, f64>>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Learning rate of the last step", table().lr_min))]
    lr_min: Option<f64>,

    #[arg(long, value_name = "NAME")]
    #[arg(help = or_default(&format!("How the learning rate falls: {}", names(SCHEDULES, |s| s.name)), table().schedule))]
    schedule: Option<String>,

    /// Steps in which the learning rate rises [default: a twentieth of all steps]
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,

    #[arg(long, value_name = "N")]
    #[arg(help = or_default("How often the learning rate falls with --schedule cosine-restarts", Shape::CYCLES))]
    cycles: Option<usize>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Share of all steps in which the learning rate falls with --schedule wsd", Shape::DECAY_SHARE))]
    decay_share: Option<f64>,

    #[arg(long, value_name = "NAME")]
    #[arg(help = or_default(&format!("Optimizer: {}", names(OPTIMS, |o| o.name)), table().optimizer))]
    optimizer: Option<String>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Decoupled weight decay", table().weight_decay))]
    weight_decay: Option<f64>,

    /// What weight decay applies to [default: matrices]
    #[arg(long, value_name = "WHAT", value_parser = decay())]
    decay: Option<Decay>,

    #[arg(long, value_name = "B1,B2", value_parser = betas)]
    #[arg(help = or_default("Decay of the optimizer's first and second moment", usual("betas", |s| format!("{},{}", s.betas.0, s.betas.1))))]
    betas: Option<(f64, f64)>,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("What stays of the sum of earlier gradients", usual("momentum", |s| s.momentum.to_string())))]
    momentum: Option<f64>,

    /// Look one step ahead in the direction of that sum (with --optimizer sgd; muon always does)
    #[arg(long)]
    nesterov: bool,

    #[arg(long, value_name = "X")]
    #[arg(help = or_default("Largest norm of the gradient; 0 never clips", table().clip))]
    clip: Option<f64>,

    /// NEFTune: noise of this strength on embeddings while training; usual is 5
    #[arg(long, value_name = "X")]
    neftune: Option<f32>,
    /// Keep an average of the weights, in which the old average has this share at each step, as in 0.999; it is
    /// written to weights/ema.gguf
    #[arg(long, value_name = "DECAY")]
    ema: Option<f64>,

    /// What to do when a loss or gradient is not finite: stop, or leave out up to N steps in a row [default: stop]
    #[arg(long, value_name = "stop|skip:N", value_parser = on_nonfinite)]
    on_nonfinite: Option<OnNonfinite>,

    #[arg(long, value_name = "N")]
    #[arg(help = or_default("Seed of initial values, order, split and dropout", table().seed))]
    seed: Option<u64>,

    /// Worker threads; the result does not depend on them [default: as many as the machine runs at once]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Held-out data; may be given more than once
    #[arg(long, value_name = "DATA")]
    eval_data: Vec<PathBuf>,

    #[arg(long, value_name = "N|X", value_parser = eval_split, conflicts_with = "eval_data")]
    #[arg(help = or_default("Without --eval-data: examples held out, as a number or as a share below 1", held_out()))]
    eval_split: Option<EvalSplit>,

    /// Steps between evaluations [default: before and after only]
    #[arg(long, value_name = "N")]
    eval_every: Option<usize>,

    /// Stop after N evaluations without a lower held-out loss; needs --eval-every
    #[arg(long, value_name = "N")]
    early_stop: Option<usize>,

    /// Steps between checkpoints [env: CHECKPOINT_EVERY] [default: a tenth of all steps]
    #[arg(long, value_name = "N")]
    save_every: Option<usize>,

    #[arg(long, value_name = "N")]
    #[arg(help = or_default("Checkpoints that are kept", table().keep))]
    keep: Option<usize>,

    /// Steps between reports of each tensor's gradient in events.jsonl [default: none]
    #[arg(long, value_name = "N")]
    grad_every: Option<usize>,

    /// Steps between reports in events.jsonl of how far each tensor is from where it began [default: none]
    #[arg(long, value_name = "N")]
    drift_every: Option<usize>,

    /// Steps between samples [default: before and after only]
    #[arg(long, value_name = "N")]
    sample_every: Option<usize>,

    /// Prompt of the samples [default: that of a held-out example]
    #[arg(long, value_name = "TEXT")]
    sample_prompt: Option<String>,
}

/// The one table of defaults, so that the help cannot say anything else.
pub fn table() -> RunConfig {
    RunConfig::default()
}

pub fn or_default(text: &str, default: impl std::fmt::Display) -> String {
    format!("{text} [default: {default}]")
}

fn held_out() -> String {
    match table().eval_split {
        EvalSplit::Count(n) => n.to_string(),
        EvalSplit::Fraction(share) => share.to_string(),
    }
}

/// The names of a table.
fn names<T>(lines: &[T], name: impl Fn(&T) -> &'static str) -> String {
    lines.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The names of what weight decay applies to.
fn decay() -> impl TypedValueParser<Value = Decay> {
    PossibleValuesParser::new(["matrices", "all"]).map(|name| match name.as_str() {
        "all" => Decay::All,
        _ => Decay::Matrices,
    })
}

fn learning_rates() -> String {
    let full = RunConfig { full: true, ..table() };
    let others = OPTIMS.iter().filter(|o| o.rate != 1.0);
    let times = others.map(|o| format!("; times {} for {}", o.rate, o.name)).collect::<String>();
    format!("{:e}, with --full {:e}{times}", table().peak_lr(), full.peak_lr())
}

/// `auto`, or bytes: `4000000000`, `4GB`, `512MiB`.
fn memory(text: &str) -> Result<MemoryLimit, String> {
    if text == "auto" {
        return Ok(MemoryLimit::Auto);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "mb" | "m" => Some(1_000_000),
        "gb" | "g" => Some(1_000_000_000),
        "mib" => Some(1 << 20),
        "gib" => Some(1 << 30),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f));
    bytes.map(MemoryLimit::Bytes).ok_or_else(|| "expected auto, or bytes as in 4GB or 512MiB".to_owned())
}

fn on_nonfinite(text: &str) -> Result<OnNonfinite, String> {
    match (text, text.strip_prefix("skip:").map(str::parse)) {
        ("stop", _) => Ok(OnNonfinite::Stop),
        (_, Some(Ok(n))) => Ok(OnNonfinite::Skip(n)),
        _ => Err("expected stop, or skip:N with the most steps that are left out in a row".to_owned()),
    }
}

/// A setting's usual value for each optimizer that has it: `1 for a, b; 2 for c`.
fn usual(setting: &str, show: impl Fn(&OptimSettings) -> String) -> String {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for optim in OPTIMS.iter().filter(|o| o.uses.contains(&setting)) {
        let value = show(&optim.usual);
        match values.iter_mut().find(|(v, _)| *v == value) {
            Some((_, names)) => names.push(optim.name),
            None => values.push((value, vec![optim.name])),
        }
    }
    let shown = values.iter().map(|(value, names)| format!("{value} for {}", names.join(", ")));
    shown.collect::<Vec<_>>().join("; ")
}

fn betas(text: &str) -> Result<(f64, f64), String> {
    let pair = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.ok_or_else(|| "expected two numbers, as in 0.9,0.999".to_owned())
}

/// `0.1` is a share, `10` a number of examples; 0 holds nothing out.
fn eval_split(text: &str) -> Result<EvalSplit, String> {
    if let Ok(count) = text.parse::<usize>() {
        return Ok(EvalSplit::Count(count));
    }
    match text.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(EvalSplit::Fraction(share)),
        _ => Err("expected a number of examples, or a share from 0 to below 1".to_owned()),
    }
}

/// The settings that a run starts from: those `stored` of a run that goes on, else the file's, else the defaults, of
/// which a file may leave out any.
///
/// # Errors
/// Kind `Usage` for a broken file.
pub fn start(
    file: Option<&toml::Table>,
    stored: Option<RunConfig>,
    defaults: RunConfig,
) -> Result<RunConfig> {
    if let Some(stored) = stored {
        return Ok(stored);
    }
    let defaults = RunConfig { threads: available_threads(), ..defaults };
    let Some(file) = file else { return Ok(defaults) };
    let broken = |e: &dyn std::fmt::Display| Error::usage("config", format!("the file of settings: {e}"));
    let mut table = toml::Table::try_from(defaults).map_err(|e| broken(&e))?;
    table.extend(file.clone());
    table.try_into().map_err(|e: toml::de::Error| broken(&e.message()))
}

/// Reads a file of settings.
///
/// # Errors
/// Kind `Usage`, with the line.
pub fn read(path: &Path) -> Result<toml::Table> {
    let text = fs::read_text_bounded(path, CONFIG_LIMIT)?;
    let broken = |e: toml::de::Error| {
        let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        Error::usage("config", format!("{}:{line}: {}", path.display(), e.message()))
    };
    // Once as settings: only so does the error of an unknown or ill-typed one have a line.
    toml::from_str::<RunConfig>(&text).map_err(broken)?;
    toml::from_str(&text).map_err(broken)
}

impl Settings {
    /// Puts the flags that are given into the settings.
    ///
    /// # Errors
    /// Kind `Usage` for an environment variable that is no number.
    pub fn apply(&self, c: &mut RunConfig) -> Result<()> {
        self.set_data(c);
        set_list(&mut c.freeze, &self.freeze);
        set_list(&mut c.train, &self.train);
        c.steps = self.steps.or(c.steps.filter(|_| self.epochs.is_none()));
        set(&mut c.epochs, &self.epochs);
        set(&mut c.batch_size, &self.batch_size);
        set(&mut c.micro_batch, &self.micro_batch);
        set(&mut c.precision, &self.precision);
        c.recompute |= self.recompute;
        c.memory = self.memory.or(c.memory);
        c.lr = self.lr.or(c.lr);
        set(&mut c.lr_groups, &self.lr_groups);
        set(&mut c.lr_min, &self.lr_min);
        // What a file says of another schedule or optimizer means nothing to this one.
        if self.schedule.as_ref().is_some_and(|name| *name != c.schedule) {
            (c.cycles, c.decay_share) = (None, None);
        }
        if self.optimizer.as_ref().is_some_and(|name| *name != c.optimizer) {
            (c.betas, c.momentum, c.nesterov) = (None, None, false);
        }
        set(&mut c.schedule, &self.schedule);
        c.cycles = self.cycles.or(c.cycles);
        c.decay_share = self.decay_share.or(c.decay_share);
        c.warmup = self.warmup.or(c.warmup);
        set(&mut c.optimizer, &self.optimizer);
        set(&mut c.weight_decay, &self.weight_decay);
        set(&mut c.decay, &self.decay);
        c.betas = self.betas.or(c.betas);
        c.momentum = self.momentum.or(c.momentum);
        c.nesterov |= self.nesterov;
        set(&mut c.clip, &self.clip);
        c.neftune = self.neftune.or(c.neftune);
        c.ema = self.ema.or(c.ema);
        set(&mut c.on_nonfinite, &self.on_nonfinite);
        set(&mut c.seed, &self.seed);
        set(&mut c.threads, &self.threads);
        c.eval_every = self.eval_every.or(c.eval_every);
        c.early_stop = self.early_stop.or(c.early_stop);
        c.save_every = match self.save_every.or(c.save_every) {
            None => env::checkpoint_every()?,
            given => given,
        };
        set(&mut c.keep, &self.keep);
        c.grad_every = self.grad_every.or(c.grad_every);
        c.drift_every = self.drift_every.or(c.drift_every);
        c.sample_every = self.sample_every.or(c.sample_every);
        c.sample_prompt = self.sample_prompt.clone().or(c.sample_prompt.take());
        Ok(())
    }

    /// Which data, and how they become sequences.
    fn set_data(&self, c: &mut RunConfig) {
        set_list(&mut c.eval_data, &self.eval_data);
        if let Some(split) = self.eval_split {
            (c.eval_split, c.eval_data) = (split, Vec::new());
        }
        c.context = self.context.or(c.context);
        set(&mut c.max_length_policy, &self.max_length_policy);
        c.pack |= self.pack;
        c.cache = self.cache.clone().or(c.cache.take());
    }
}

/// Puts a flag that is given in the place of a setting.
pub fn set<T: Clone>(field: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        field.clone_from(value);
    }
}

fn set_list<T: Clone>(field: &mut Vec<T>, flags: &[T]) {
    if !flags.is_empty() {
        *field = flags.to_vec();
    }
}

/// Names with a number each, such as `q=32,down=8`.
pub fn pairs<T: FromStr>(text: &str) -> Result<BTreeMap<String, T>, String> {
    let entry = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_string(), value.trim().parse().ok()?))
    };
    let entries: Option<BTreeMap<_, _>> = text.split(',').map(entry).collect();
    entries.ok_or_else(|| "expected names with a number each, as in q=32,down=8".to_owned())
}
