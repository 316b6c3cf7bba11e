//! How fast this machine is, and a model on it: what `planish bench` prints.
//!
//! A measurement is repeated after one that is thrown away, since the first one touches memory and wakes the workers; what
//! counts is the median. Rates are in 10^9 a second: GFLOP/s count a multiply-add as two operations, GB/s are bytes read.
//! Training is measured where it is done, in planish-train.

use std::path::Path;
use std::time::Instant;

use planish_base::rng::{Purpose, Stream};
use planish_base::{Result, TypeId};
use planish_compute::call::{Along, MatMul, Store};
use planish_compute::{Backend, CpuBackend, View};
use planish_model::{ROLES, Spec};

use crate::engine::{Engine, EngineOptions};
use crate::model::Model;
use crate::precision::Precision;
use crate::room;
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Session;

/// A measurement of the peak takes at least this long, so that waking a worker does not count.
const PEAK_SECONDS: f64 = 0.05;

/// What is read to measure the memory: far more than caches hold.
const READ_BYTES: u64 = 256 << 20;

/// The values of a measurement that was repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples {
    /// The one in the middle; of an even number the mean of the two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Samples {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Samples {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        assert!(n > 0, "a measurement has values");
        let median = (values[(n - 1) / 2] + values[n / 2]) / 2.0;
        Samples { median, min: values[0], max: values[n - 1] }
    }

    /// Measures once for nothing and then `repeats` times, at least once.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn measure(repeats: usize, mut measure: impl FnMut() -> Result<f64>) -> Result<Samples> {
        measure()?;
        Ok(Samples::of((0..repeats.max(1)).map(|_| measure()).collect::<Result<_>>()?))
    }

    /// `amount` divided by each value: rates out of times.
    pub fn rates(&self, amount: f64) -> Samples {
        let rate = |seconds: f64| amount / seconds.max(1e-12);
        Samples { median: rate(self.median), min: rate(self.max), max: rate(self.min) }
    }
}

/// Seconds that `f` takes.
///
/// # Errors
/// Those of `f`.
pub fn seconds(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Multiply-adds in registers alone, in GFLOP/s: no product can be faster on this path and these threads.
pub fn peak_gflops(backend: &mut CpuBackend, repeats: usize) -> Samples {
    let mut run = |rounds| {
        let (start, n) = (Instant::now(), backend.multiply_adds(rounds));
        (n as f64 * 1e-9, start.elapsed().as_secs_f64())
    };
    let mut rounds = 10_000;
    // The first ones wake the workers too.
    while run(rounds).1 < PEAK_SECONDS {
        rounds *= 2;
    }
    let rate = |_| {
        let (operations, seconds) = run(rounds);
        operations / seconds
    };
    Samples::of((0..repeats.max(1)).map(rate).collect())
}

/// Reading memory that no cache holds, in GB/s.
///
/// # Errors
/// Kind `Resource` without memory.
pub fn read_gb(backend: &mut CpuBackend, repeats: usize) -> Result<Samples> {
    room::check("measuring memory", READ_BYTES)?;
    let view = backend.readable(READ_BYTES)?;
    let rate = Samples::measure(repeats, || {
        let (start, n) = (Instant::now(), backend.read(&view));
        Ok(n as f64 * 1e-9 / start.elapsed().as_secs_f64())
    });
    backend.free(view.home);
    rate
}

/// Which of a product's operands is stored transposed, as BLAS names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// a [m, k], b [n, k]: a linear map's forward pass.
    Nt,
    /// a [m, k], b [k, n]: the gradient of its input.
    Nn,
    /// a [k, m], b [k, n]: the gradient of its weight.
    Tn,
}

impl Order {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Order); 3] = [("NT", Order::Nt), ("NN", Order::Nn), ("TN", Order::Tn)];

    fn along(self) -> (Along, Along) {
        match self {
            Order::Nt => (Along::K, Along::K),
            Order::Nn => (Along::K, Along::Outer),
            Order::Tn => (Along::Outer, Along::Outer),
        }
    }
}

/// The linear maps of SmolLM2-135M for 512 tokens, its head, and a square one: m, k, n.
pub const SHAPES: [[usize; 3]; 5] =
    [[512, 576, 576], [512, 576, 1536], [512, 1536, 576], [512, 576, 49152], [512, 2048, 2048]];

/// The seconds of a product of m x k with k x n, of f32 operands that it rounds if the precision says so.
///
/// # Errors
/// Kind `Resource` without memory.
pub fn product(
    backend: &mut CpuBackend,
    [m, k, n]: [usize; 3],
    order: Order,
    precision: Precision,
    repeats: usize,
) -> Result<Samples> {
    room::check("a product", 4 * (m * k + k * n + m * n) as u64)?;
    let (a_along, b_along) = order.along();
    let stored = |along, outer| if along == Along::K { (outer, k) } else { (k, outer) };
    let a = matrix(backend, stored(a_along, m))?;
    let b = matrix(backend, stored(b_along, n))?;
    let c = matrix(backend, (m, n))?;
    let (scale, store, product) = (1.0, Store::Replace, precision.product());
    let call = MatMul { a, b, c, a_along, b_along, scale, store, product }.into();
    let times = Samples::measure(repeats, || {
        seconds(|| {
            backend.exec(&call);
            Ok(())
        })
    });
    [a, b, c].into_iter().for_each(|view| backend.free(view.home));
    times
}

/// Random numbers, so that no product is of zeros.
fn matrix(backend: &mut CpuBackend, (rows, cols): (usize, usize)) -> Result<View> {
    let home = backend.alloc((rows * cols * 4) as u64)?;
    let view = View::new(home, 0, rows, cols, TypeId::F32);
    let stream = Stream::new(0, Purpose::Init, cols as u32);
    let row: Vec<f32> = (0..cols as u64).map(|i| stream.uniform(i) as f32 - 0.5).collect();
    for r in 0..rows {
        backend.upload_f32(&view.rows_range(r, 1), &row);
    }
    Ok(view)
}

/// Token ids that look like nothing in particular.
pub fn random_ids(spec: &Spec, n: usize, stream: u32) -> Vec<u32> {
    let stream = Stream::new(1, Purpose::Init, stream);
    (0..n as u64).map(|i| (stream.u64(i) % spec.vocab.max(1) as u64) as u32).collect()
}

/// Seconds of a prompt and of the tokens after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// From an empty sequence to the logits after the prompt.
    pub prefill: Samples,
    /// All decoded tokens, each chosen greedily.
    pub decode: Samples,
}

/// Feeds `prompt` random tokens and then decodes `tokens`, each time in a new sequence. `check` is asked before each.
///
/// # Errors
/// Those of [`Session`], and of `check`.
pub fn generation(
    engine: &mut Engine,
    prompt: usize,
    tokens: usize,
    repeats: usize,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<Generation> {
    let ids = random_ids(&engine.model.spec, prompt, 0);
    let mut decode = Vec::new();
    let prefill = Samples::measure(repeats, || {
        check()?;
        let mut session = Session::of(engine, &[], prompt + tokens)?;
        let prefill = seconds(|| session.prefill(&ids))?;
        let mut sampler = Sampler::new(SamplerOptions::default())?;
        let mut all = || (0..tokens).try_for_each(|_| session.decode(sampler.next(session.logits())));
        decode.push(seconds(&mut all)?);
        Ok(prefill)
    })?;
    let decode = Samples::of(decode.split_off(1));
    Ok(Generation { prefill, decode })
}

/// Seconds from before a file is opened to its first token after `prompt`, or after five tokens where the model has no
/// tokenizer.
///
/// # Errors
/// Those of [`Model::open`], [`Engine::new`] and [`Session`].
pub fn first_token(path: &Path, options: EngineOptions, prompt: &str) -> Result<f64> {
    seconds(|| {
        let model = Model::open(path)?;
        let options = EngineOptions { context: options.context.min(model.spec.context), ..options };
        let mut ids = match &model.tokenizer {
            Some(t) => t.prompt(prompt)?,
            None => random_ids(&model.spec, 5, 0),
        };
        ids.truncate(options.context);
        let mut engine = Engine::new(model, options)?;
        let mut session = Session::new(&mut engine, &[])?;
        session.prefill(&ids)?;
        Sampler::new(SamplerOptions::default())?.next(session.logits());
        Ok(())
    })
}

/// Multiplications by weights of the forward pass of `n` tokens of which `heads` get logits; attention is not counted.
pub fn multiplications(spec: &Spec, n: usize, heads: usize) -> u64 {
    let maps = spec.linears(&ROLES).into_iter().map(|id| spec.linear_shape(id));
    let blocks: usize = maps.map(|(out, input)| out * input).sum();
    (n * blocks + heads * spec.vocab * spec.width) as u64
}

/// Bytes of weights that one token's decode reads: all but a table of embeddings that is not the head too.
pub fn decoded_bytes(model: &Model) -> u64 {
    let table = model.weights.entries.get("token_embd.weight").filter(|_| !model.spec.tied);
    model.weight_bytes() - table.map_or(0, |e| model.weights.bytes(e).len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_a_middle() {
        let of = |v: &[f64]| Samples::of(v.to_vec());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Samples { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(of(&[2.0, 4.0]).rates(8.0), Samples { median: 8.0 / 3.0, min: 2.0, max: 4.0 });
    }

    #[test]
    fn the_first_measurement_does_not_count() {
        let mut n = 0.0;
        let measured = Samples::measure(2, || {
            n += 1.0;
            Ok(n)
        });
        assert_eq!(measured.unwrap(), Samples { median: 2.5, min: 2.0, max: 3.0 });
    }
}
