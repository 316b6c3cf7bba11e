//! What a run will need, known before its first step.

use planish_base::Result;
use planish_engine::{Engine, score};
use planish_model::{AdapterSet, KvCache, Ragged};
use planish_text::{Example, Report, batch};
use serde::Serialize;

use crate::data::Order;

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Program, tokenizer and data, as they lie in memory when the plan is made.
    pub process_bytes: u64,
    /// Weights of the base, mapped from its file.
    pub weights_bytes: u64,
    /// Trained values.
    pub adapter_bytes: u64,
    /// Their gradients.
    pub gradients_bytes: u64,
    /// The optimizer's slots.
    pub slots_bytes: u64,
    /// Activations and their gradients, of the largest micro-batch or evaluation.
    pub activations_bytes: u64,
    /// KV cache of the samples.
    pub kv_bytes: u64,
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
    /// Tokens processed by all steps.
    pub run_tokens: u64,
    /// Of which in the loss.
    pub run_trained_tokens: u64,
    /// Tokens processed by all evaluations.
    pub eval_tokens: u64,
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

/// What a run will need.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Bytes.
    pub memory: Memory,
    /// Tokens.
    pub tokens: Tokens,
    /// Seconds.
    pub time: Time,
    /// Optimizer steps.
    pub steps: usize,
    /// Values that are trained.
    pub trained_parameters: u64,
    /// Values of the base.
    pub base_parameters: u64,
}

/// Scratch of one worker: two packed blocks of a product and the rows they are made of.
const WORKER_BYTES: u64 = 1 << 20;

/// The memory of a run.
pub fn memory(process_bytes: u64, engine: &Engine, trained: u64, slots: usize, activations: u64) -> Memory {
    let spec = &engine.model.spec;
    let owned = engine.backend.allocated_bytes();
    let adapter_bytes = 4 * trained;
    let slots_bytes = 4 * trained * slots as u64;
    let mut m = Memory {
        process_bytes,
        weights_bytes: engine.model.weight_bytes(),
        adapter_bytes,
        gradients_bytes: adapter_bytes,
        slots_bytes,
        activations_bytes: activations,
        kv_bytes: KvCache::bytes(spec, 1, engine.context()),
        // What the backend has allocated besides: norms, tables, batch buffers.
        scratch_bytes: owned.saturating_sub(2 * adapter_bytes + slots_bytes)
            + engine.backend.threads() as u64 * WORKER_BYTES,
        total_bytes: 0,
    };
    m.total_bytes = m.process_bytes
        + m.weights_bytes
        + m.adapter_bytes
        + m.gradients_bytes
        + m.slots_bytes
        + m.activations_bytes
        + m.kv_bytes
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
    let train = chosen.map(|m| arena(m, |b| engine.training_program(b, adapters).0.arena_bytes())).max();
    let longest = eval.iter().max_by_key(|e| (e.ids.len(), e.trained_tokens()));
    let eval = longest.map(|e| arena(&[*e], |b| score::program(engine, b, adapters, 0).0.arena_bytes()));
    train.unwrap_or(0).max(eval.unwrap_or(0))
}

fn arena(examples: &[&Example], bytes: impl Fn(&Ragged) -> u64) -> u64 {
    let b = batch(examples);
    let segments = score::segments(&b);
    bytes(&score::ragged(&b, &segments))
}

/// The micro-batches of all steps.
pub fn micro_batches<'a>(
    order: &Order,
    steps: usize,
    micro_batch: usize,
    examples: &[&'a Example],
) -> Vec<Vec<&'a Example>> {
    let chosen = |s: usize| order.step(s).into_iter().map(|i| examples[i]).collect::<Vec<_>>();
    (0..steps).flat_map(|s| chosen(s).chunks(micro_batch).map(<[_]>::to_vec).collect::<Vec<_>>()).collect()
}

/// Refuses what cannot fit into the memory that is free.
///
/// # Errors
/// Kind `Resource`, with what is needed, what is there, and settings that need less.
pub fn check_fits(memory: &Memory, available: Option<u64>) -> Result<()> {
    let needed = memory.total_bytes.saturating_sub(memory.process_bytes);
    match available {
        Some(free) if needed > free => {
            let mb = |b: u64| b / 1_000_000;
            let message = format!("the run needs {} MB more memory, {} MB are free", mb(needed), mb(free));
            Err(planish_base::Error::resource("memory", message).with_hint(
                "lower --micro-batch, or the longest example with --context and --max-length-policy truncate",
            ))
        }
        _ => Ok(()),
    }
}
