//! What a run will need, known before its first step.

use planish_base::Error;
use planish_compute::View;
use planish_engine::{Engine, score};
use planish_model::{AdapterSet, KvCache};
use planish_store::process;
use planish_text::{Example, Report, batch};
use serde::Serialize;

use crate::config::{MemoryLimit, RunConfig};
use crate::data::Order;
use crate::scratch::NewModel;
use crate::sequence::{self, Sequence};
use crate::trainer::Trainer;

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Program, tokenizer and data, as they lie in memory when the plan is made.
    pub process_bytes: u64,
    /// Weights of the base that are not trained, mapped from its file.
    pub weights_bytes: u64,
    /// Trained values: those of an adapter, or f32 masters of all weights.
    pub trained_bytes: u64,
    /// Their gradients.
    pub gradients_bytes: u64,
    /// The optimizer's slots.
    pub slots_bytes: u64,
    /// The average of the trained values, where one is kept.
    pub average_bytes: u64,
    /// What an adapter began with, where drift from it is reported.
    pub initial_bytes: u64,
    /// Activations and their gradients, of the largest micro-batch or evaluation; they share their memory with the
    /// temporaries of an update.
    pub activations_bytes: u64,
    /// KV cache of the samples.
    pub kv_bytes: u64,
    /// The tensor that a checkpoint is just writing, and write buffers.
    pub checkpoint_bytes: u64,
    /// Packed panels and attention tiles of the workers, tables and batch buffers.
    pub scratch_bytes: u64,
    /// All together.
    pub total_bytes: u64,
}

/// Numbers of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tokens {
    /// The training data.
    pub data: Report,
    /// Examples trained on, without the held-out ones.
    pub train_examples: usize,
    /// Examples held out.
    pub eval_examples: usize,
    /// What packing came to; none without it.
    pub packed: Option<Packed>,
    /// Tokens processed by all steps.
    pub run_tokens: u64,
    /// Of which in the loss.
    pub run_trained_tokens: u64,
    /// Tokens processed by all evaluations.
    pub eval_tokens: u64,
}

/// What packing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Packed {
    /// Sequences that the examples trained on were packed into.
    pub packs: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// How full they are: tokens / (packs x context).
    pub fill: f64,
}

/// Seconds, from a timed micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Time {
    /// Tokens a second in training.
    pub tokens_per_second: f64,
    /// All steps.
    pub training_seconds: f64,
    /// All evaluations; a forward pass is half of a step's work.
    pub evaluation_seconds: f64,
}

/// Bytes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Disk {
    /// One checkpoint.
    pub checkpoint_bytes: u64,
    /// All that are kept and the one that is being written, with the weights beside them.
    pub needed_bytes: u64,
    /// Free where the run is written; none where the system does not say.
    pub free_bytes: Option<u64>,
}

/// What a run will need.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Bytes in memory.
    pub memory: Memory,
    /// Bytes on the disk.
    pub disk: Disk,
    /// Tokens.
    pub tokens: Tokens,
    /// Seconds.
    pub time: Time,
    /// Optimizer steps.
    pub steps: usize,
    /// Sequences in memory at one time.
    pub micro_batch: usize,
    /// Whether activations are computed again in the backward pass.
    pub recompute: bool,
    /// What matrices are multiplied as.
    pub precision: String,
    /// Values that are trained.
    pub trained_parameters: u64,
    /// Values of the base.
    pub base_parameters: u64,
    /// The new model of a run that begins with one.
    pub model: Option<NewModel>,
    /// The lowest held-out loss that there is, in nats a token: the entropy of the built-in corpus.
    pub floor: Option<f64>,
}

/// Scratch of one worker: two packed blocks of a product and the rows they are made of.
const WORKER_BYTES: u64 = 1 << 20;

/// The memory of a run whose passes need an arena of `activations` bytes. `process_bytes` is what the process had
/// before anything was allocated for the run, `export_bytes` what writing the weights takes, `sample` the tokens of a
/// sample with its prompt, `initial_bytes` are kept of where the tensors began.
pub fn memory(
    engine: &Engine,
    trainer: &Trainer,
    process_bytes: u64,
    activations: u64,
    export_bytes: u64,
    sample: usize,
    initial_bytes: u64,
) -> Memory {
    let span = |views: &[(String, View)]| views.iter().map(|(_, v)| v.span()).sum::<u64>();
    let (trained_bytes, slots_bytes) = (span(&trainer.weights()), trainer.slot_bytes());
    let average_bytes = span(&trainer.averages());
    let owned = engine.backend.allocated_bytes();
    let mut m = Memory {
        process_bytes,
        weights_bytes: engine.frozen_bytes(),
        trained_bytes,
        gradients_bytes: trained_bytes,
        slots_bytes,
        average_bytes,
        initial_bytes,
        activations_bytes: activations,
        kv_bytes: KvCache::bytes(&engine.model.spec, 1, sample),
        checkpoint_bytes: export_bytes,
        // What the backend has allocated besides: norms, tables, batch buffers.
        scratch_bytes: owned.saturating_sub(2 * trained_bytes + slots_bytes + average_bytes)
            + engine.backend.threads() as u64 * WORKER_BYTES,
        total_bytes: 0,
    };
    m.total_bytes = m.process_bytes
        + m.weights_bytes
        + m.trained_bytes
        + m.gradients_bytes
        + m.slots_bytes
        + m.average_bytes
        + m.initial_bytes
        + m.activations_bytes
        + m.kv_bytes
        + m.checkpoint_bytes
        + m.scratch_bytes;
    m
}

/// Micro-batches whose programs are recorded to find the largest arena.
const CANDIDATES: usize = 8;

/// The largest arena of any pass of the run. The order is a pure function, so the micro-batches are known; those with
/// most tokens and most trained tokens are recorded.
pub fn activations(
    engine: &Engine,
    adapters: &[&AdapterSet],
    micro_batches: &[Vec<&Example>],
    eval: &[&Example],
) -> u64 {
    let mut by_tokens: Vec<&Vec<&Example>> = micro_batches.iter().collect();
    by_tokens.sort_by_key(|m| std::cmp::Reverse(m.iter().map(|e| e.ids.len()).sum::<usize>()));
    let mut by_trained = by_tokens.clone();
    by_trained.sort_by_key(|m| std::cmp::Reverse(m.iter().map(|e| e.trained_tokens()).sum::<usize>()));
    let chosen = by_tokens.into_iter().take(CANDIDATES).chain(by_trained.into_iter().take(CANDIDATES));
    let arena = |examples: &Vec<&Example>| {
        let b = batch(examples);
        let segments = score::segments(&b);
        engine.training_program(&score::ragged(&b, &segments), adapters).0.arena_bytes()
    };
    let train = chosen.map(arena).max();
    train.unwrap_or(0).max(score::arena_bytes(engine, eval, adapters, 0))
}

/// Steps whose micro-batches are looked at one by one.
const LOOKED_AT: usize = 4096;

/// The examples of each micro-batch of all steps; of a long run those of its first steps, and the longest that may
/// come after them.
pub fn micro_batches<'a, S: Sequence<'a>>(
    order: &Order,
    steps: usize,
    micro_batch: usize,
    sequences: &[S],
) -> Vec<Vec<&'a Example>> {
    let examples = |indices: &[usize]| -> Vec<&'a Example> {
        indices.iter().flat_map(|i| sequences[*i].examples()).copied().collect()
    };
    let chosen = order.steps_of(0..steps.min(LOOKED_AT));
    let of_step = chosen.chunks(order.batch_size);
    let mut all: Vec<Vec<&Example>> = of_step.flat_map(|s| s.chunks(micro_batch).map(examples)).collect();
    if steps > LOOKED_AT {
        let mut longest: Vec<usize> = (0..sequences.len()).collect();
        longest.sort_by_key(|i| {
            let s = &sequences[*i];
            std::cmp::Reverse((sequence::tokens(s), sequence::trained_tokens(s)))
        });
        longest.truncate(micro_batch.min(order.batch_size));
        all.push(examples(&longest));
    }
    all
}

/// What a run may take.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that are free beside what the process has already; none where the system does not say.
    pub free: Option<u64>,
    /// The limit that the user gave for the whole process.
    pub limit: Option<u64>,
}

impl Room {
    /// What the system and the settings leave.
    pub fn new(config: &RunConfig) -> Room {
        let limit = match config.memory {
            Some(MemoryLimit::Bytes(b)) => Some(b),
            _ => None,
        };
        Room { free: process::available_bytes(), limit }
    }

    /// Whether a run of `total` bytes fits of which `there` are taken already.
    pub fn holds(&self, total: u64, there: u64) -> bool {
        self.free.is_none_or(|free| total.saturating_sub(there) <= free)
            && self.limit.is_none_or(|limit| total <= limit)
    }

    /// The error for a run of `total` bytes that does not fit; `fitting` are settings that do.
    pub fn refusal(&self, total: u64, there: u64, fitting: Option<Choice>) -> Error {
        let mb = |b: u64| b / 1_000_000;
        let message = match (self.limit, self.free) {
            (Some(limit), _) if total > limit => {
                format!("the run needs {} MB, --memory allows {} MB", mb(total), mb(limit))
            }
            (_, Some(free)) => {
                format!("the run needs {} MB more memory, {} MB are free", mb(total - there), mb(free))
            }
            _ => format!("the run needs {} MB", mb(total)),
        };
        let hint = match fitting {
            Some(c) => format!("it fits with {c}; --memory auto chooses by itself"),
            None => "nothing that --memory could choose fits: shorten the examples with --context and \
                     --max-length-policy truncate, or take a smaller model or rank"
                .to_string(),
        };
        Error::resource("memory", message).with_hint(hint)
    }
}

/// The settings that `--memory` may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Sequences in memory at one time.
    pub micro_batch: usize,
    /// Whether activations are computed again in the backward pass.
    pub recompute: bool,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let recompute = if self.recompute { " --recompute" } else { "" };
        write!(f, "--micro-batch {}{recompute}", self.micro_batch)
    }
}

/// What may be chosen, the fastest first: smaller micro-batches cost less time than computing activations twice.
pub fn choices(config: &RunConfig) -> Vec<Choice> {
    let most = config.micro_batch.min(config.batch_size);
    let sizes = || std::iter::successors(Some(most), |m| (*m > 1).then_some(m / 2));
    let of = |recompute| sizes().map(move |micro_batch| Choice { micro_batch, recompute });
    match config.recompute {
        true => of(true).collect(),
        false => of(false).chain(of(true)).collect(),
    }
}
