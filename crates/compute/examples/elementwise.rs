//! What operations that are no products cost, over buffers larger than the caches: the time of an element, and the
//! bytes of operands a second, each operand counted once.
//!
//! ```text
//! cargo run --release -p planish-compute --example elementwise -- [THREADS [OPERATION]]
//! ```
#![allow(clippy::print_stdout)] // an example prints

use std::time::{Duration, Instant};

use planish_base::{Result, TypeId};
use planish_compute::call::*;
use planish_compute::{Backend, CpuBackend, Isa, View};

/// Rows and columns of an activation, of logits, and of a matrix that an optimizer steps.
const ACTIVATION: (usize, usize) = (2048, 1536);
const LOGITS: (usize, usize) = (64, 49_152);
const MATRIX: (usize, usize) = (4096, 2048);
const REPEATS: usize = 7;

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let only = std::env::args().nth(2).unwrap_or_default();
    let isa = Isa::detect();
    let backend = &mut CpuBackend::new(isa, threads)?;
    println!("{} on {threads} threads, median of {REPEATS}", isa.name());
    let calls = [passes(backend)?, vectors(backend)?, matrices(backend)?].concat();
    for call in calls.iter().filter(|c| c.name().starts_with(&only)) {
        let seconds = median(backend, call).as_secs_f64();
        let (mut bytes, mut elements) = (0, 0);
        let mut count = |v: &View| {
            bytes += v.rows * v.bytes_of(v.cols) as usize;
            elements = elements.max(v.elements());
        };
        let mut written = Vec::new();
        call.visit(&mut count, &mut |v| written.push(*v));
        written.iter().for_each(count);
        println!(
            "{:18} {:7.2} ms {:6.2} ns an element {:6.2} GB/s",
            call.name(),
            seconds * 1e3,
            seconds * 1e9 / elements as f64,
            bytes as f64 / seconds * 1e-9
        );
    }
    Ok(())
}

fn median(backend: &mut CpuBackend, call: &Call) -> Duration {
    let mut times = [(); REPEATS].map(|()| {
        let start = Instant::now();
        backend.exec(call);
        start.elapsed()
    });
    times.sort();
    times[REPEATS / 2]
}

/// Values from -0.1 to 0.1.
fn floats(b: &mut CpuBackend, (rows, cols): (usize, usize)) -> Result<View> {
    let home = b.alloc((rows * cols * 4) as u64)?;
    let view = View::new(home, 0, rows, cols, TypeId::F32);
    let values = (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 / 5000.0 - 0.1).collect::<Vec<_>>();
    b.upload_f32(&view, &values);
    Ok(view)
}

/// Zeros: moments, codes, scales, sums.
fn zeros(b: &mut CpuBackend, n: usize, dtype: TypeId) -> Result<View> {
    Ok(View::new(b.alloc(n as u64 * 8)?, 0, 1, n, dtype))
}

fn words(b: &mut CpuBackend, values: &[u32]) -> Result<View> {
    let home = b.alloc(values.len() as u64 * 4)?;
    let view = View::new(home, 0, values.len(), 1, TypeId::I32);
    b.upload_u32(&view, values);
    Ok(view)
}

fn hyper(b: &mut CpuBackend, values: &[f32]) -> Result<View> {
    let view = floats(b, (1, values.len()))?;
    b.upload_f32(&view, values);
    Ok(view)
}

fn passes(b: &mut CpuBackend) -> Result<Vec<Call>> {
    let (rows, cols) = ACTIVATION;
    let [x, y, gate, up, z] = [
        floats(b, ACTIVATION)?,
        floats(b, ACTIVATION)?,
        floats(b, ACTIVATION)?,
        floats(b, ACTIVATION)?,
        floats(b, ACTIVATION)?,
    ];
    let (rstd, row) = (floats(b, (rows, 1))?, floats(b, (1, cols))?);
    let (logits, loss) = (floats(b, LOGITS)?, floats(b, (LOGITS.0, 1))?);
    let ids: Vec<u32> = (0..rows as u32).collect();
    let (positions, targets) = (words(b, &ids)?, words(b, &ids[..LOGITS.0])?);
    let (key, normaliser) =
        (View { rows: 1, cols: 4, stride: 4, ..words(b, &[1, 2, 3, 4])? }, hyper(b, &[0.01])?);
    let (top_ids, logprobs) =
        (View { cols: 8, stride: 8, ..words(b, &ids[..8 * LOGITS.0])? }, floats(b, (LOGITS.0, 8))?);
    let top_ids = View { rows: LOGITS.0, ..top_ids };
    let table = floats(b, (rows, 64))?;
    let (act, weight, width) = (Activation::Silu, Some(row), cols);
    let rope = |style| Rope { positions, table, x: z, width: 64, style, direction: Direction::Forward };
    Ok(vec![
        CrossEntropy { targets, normaliser, logits, loss }.into(),
        TopK { logits, ids: top_ids, logprobs }.into(),
        Gated { gate, up, y, act }.into(),
        GatedBack { dy: x, gate, up, dgate: y, dup: z, act }.into(),
        RmsNorm { x, weight, y, rstd: Some(rstd), eps: 1e-5, width }.into(),
        RmsNormBack { dy: gate, x, weight, rstd, dx: y, width, store: Store::Accumulate }.into(),
        RmsNormWeightBack { dy: gate, x, rstd, dweight: row, width }.into(),
        ColumnSum { x, out: row }.into(),
        rope(RopeStyle::Interleaved).into(),
        rope(RopeStyle::Halves).into(),
        Dropout { x, key, y, p: 0.1, stream: 1 }.into(),
        EmbedBack { ids: positions, dy: x, dtable: y }.into(),
        Add { a: x, b: gate, y, scale: 1.0 }.into(),
    ])
}

fn vectors(b: &mut CpuBackend) -> Result<Vec<Call>> {
    let n = MATRIX.0 * MATRIX.1;
    let [grad, param, x, z] =
        [floats(b, (1, n))?, floats(b, (1, n))?, floats(b, (1, n))?, floats(b, (1, n))?];
    let [m, v, sgd_m, lion_m, out] = [
        zeros(b, n, TypeId::F32)?,
        zeros(b, n, TypeId::F32)?,
        zeros(b, n, TypeId::F32)?,
        zeros(b, n, TypeId::F32)?,
        zeros(b, n, TypeId::F32)?,
    ];
    let (weights, sums) = (zeros(b, 2, TypeId::F64)?, zeros(b, n.div_ceil(SUM_BLOCK), TypeId::F64)?);
    let [m8, v8] = [zeros(b, n, TypeId::I8)?, zeros(b, n, TypeId::I8)?];
    let scales = n.div_ceil(CODE_BLOCK);
    let [m_scale, v_scale] = [zeros(b, scales, TypeId::F32)?, zeros(b, scales, TypeId::F32)?];
    let adamw = hyper(b, &[1e-5, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.271, 0.003, 0.5])?;
    let free = hyper(b, &[1e-5, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.003, 0.0, 0.5])?;
    let (sgd, lion) = (hyper(b, &[1e-5, 0.9, 1.0, 0.9, 0.5])?, hyper(b, &[1e-5, 0.9, 0.1, 0.99, 0.01, 0.5])?);
    let (muon, weight_decay) = (hyper(b, &[1e-5, 0.95, 0.5])?, 0.1);
    Ok(vec![
        SumSquares { x: grad, out: sums }.into(),
        AdamW { grad, hyper: adamw, param, m, v, weight_decay }.into(),
        AdamW8 { grad, hyper: adamw, param, m: m8, v: v8, m_scale, v_scale, weight_decay }.into(),
        Sgd { grad, hyper: sgd, param, m: sgd_m, weight_decay }.into(),
        Lion { grad, hyper: lion, param, m: lion_m, weight_decay }.into(),
        Extrapolate { hyper: free, param, x, z }.into(),
        ScheduleFree { grad, hyper: free, x, param, z, v, weights, weight_decay }.into(),
        Momentum { grad, hyper: muon, m: sgd_m, out }.into(),
        Normalise { sums, x: out, eps: 1e-7 }.into(),
        Descend { direction: out, hyper: muon, param, scale: 3.0, weight_decay }.into(),
    ])
}

fn matrices(b: &mut CpuBackend) -> Result<Vec<Call>> {
    let (grad, param) = (floats(b, MATRIX)?, floats(b, MATRIX)?);
    let (rows, cols) = (zeros(b, MATRIX.0, TypeId::F32)?, zeros(b, MATRIX.1, TypeId::F32)?);
    let (sums, hyper) = (zeros(b, MATRIX.0, TypeId::F64)?, hyper(b, &[1e-5, 0.7, 0.3, 1e-30, 0.5, 0.5])?);
    Ok(vec![
        FactoredMoments { grad, hyper, rows, cols }.into(),
        FactoredSquares { grad, hyper, rows, cols, sums }.into(),
        FactoredStep { grad, hyper, rows, cols, sums, param, weight_decay: 0.1 }.into(),
    ])
}
