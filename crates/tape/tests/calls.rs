//! Kernels against the oracle where OPS does not reach: odd shapes and block types of products, decoding, the
//! optimizer. Every call of the table is executed by some case here or by an operation's example.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

use std::collections::BTreeSet;
use std::sync::Arc;

use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};
use planish_compute::call::*;
use planish_compute::quant::{QUANTS, Quant};
use planish_compute::{Backend, CpuBackend, Isa, View};
use planish_tape::ops::{Example, OPS};
use planish_tape::oracle::Oracle;
use planish_tape::{Mode, Tape};

/// Makes operands, hands out the calls and what to compare.
type Case = fn(&mut dyn Backend) -> (Vec<Call>, Vec<View>);

fn floats(b: &mut dyn Backend, rows: usize, cols: usize, stream: u32) -> View {
    let home = b.alloc((rows * cols * 4) as u64).unwrap();
    let view = View::new(home, 0, rows, cols, TypeId::F32);
    b.upload_f32(&view, &Example::normals(stream, rows * cols));
    view
}

fn words(b: &mut dyn Backend, rows: usize, cols: usize, values: &[u32]) -> View {
    let home = b.alloc((rows * cols * 4) as u64).unwrap();
    let view = View::new(home, 0, rows, cols, TypeId::I32);
    b.upload_u32(&view, values);
    view
}

/// Random blocks of a type, every two-byte scale a harmless half.
fn blocks(b: &mut dyn Backend, rows: usize, cols: usize, dtype: TypeId) -> View {
    let layout = dtype.layout().unwrap();
    let stream = Stream::new(9, Purpose::Init, dtype.0);
    let n = rows * cols / layout.block as usize;
    let mut bytes = Vec::new();
    for block in 0..n as u64 {
        let size = layout.bytes as usize;
        let mut one: Vec<u8> =
            (0..size as u64).map(|i| (stream.u64(block * size as u64 + i) & 0xff) as u8).collect();
        let halves: &[usize] = match dtype {
            TypeId::F32 => &[2],
            TypeId::Q6_K => &[208],
            TypeId::Q3_K => &[108],
            TypeId::Q2_K => &[80, 82],
            TypeId::Q4_1 | TypeId::Q5_1 | TypeId::Q4_K | TypeId::Q5_K => &[0, 2],
            _ => &[0],
        };
        for &at in halves {
            // 0x2c00 is 2^-4 as a half; as the upper half of a single, or a bfloat16, it is tiny but normal.
            one[at..at + 2].copy_from_slice(&(0x2c00 | stream.u64(block) as u16 & 0x3ff).to_le_bytes());
        }
        bytes.extend(one);
    }
    View::new(b.import(Arc::new(bytes)), 0, rows, cols, dtype)
}

fn product(
    b: &mut dyn Backend,
    m: usize,
    k: usize,
    n: usize,
    a_along: Along,
    b_along: Along,
    product: Product,
) -> (Call, View) {
    let shape = |along, outer, k| if along == Along::K { (outer, k) } else { (k, outer) };
    let ((ar, ac), (br, bc)) = (shape(a_along, m, k), shape(b_along, n, k));
    let (a, w, c) = (floats(b, ar, ac, 1), floats(b, br, bc, 2), floats(b, m, n, 3));
    let (scale, store) = (0.75, Store::Accumulate);
    (MatMul { a, b: w, c, a_along, b_along, scale, store, product }.into(), c)
}

fn products(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    ragged(b, Product::Packed, &[Along::K, Along::Outer])
}

fn products_of_bf16(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    ragged(b, Product::Bf16, &[Along::K, Along::Outer])
}

fn products_of_int16(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    ragged(b, Product::Int16, &[Along::K])
}

/// Ragged tiles, one row, one column, k of 1, odd k, k over two blocks and three.
fn ragged(b: &mut dyn Backend, arithmetic: Product, along: &[Along]) -> (Vec<Call>, Vec<View>) {
    let shapes = [
        (1, 1, 1),
        (1, 257, 17),
        (7, 3, 1),
        (6, 16, 16),
        (13, 300, 33),
        (97, 1, 31),
        (5, 520, 400),
        (9, 1500, 50),
    ];
    let layouts = along.iter().flat_map(|a| along.iter().map(|b| (*a, *b)));
    layouts
        .flat_map(|(x, y)| shapes.map(|(m, k, n)| (m, k, n, x, y)))
        .map(|(m, k, n, x, y)| product(b, m, k, n, x, y, arithmetic))
        .unzip()
}

/// Every block type as the second operand, along both directions, packed and as dot products.
fn block_types(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (mut calls, mut out) = (Vec::new(), Vec::new());
    for quant in QUANTS {
        let w = blocks(b, 37, 512, quant.id);
        for product in [Product::Packed, Product::Dot] {
            let (a, c) = (floats(b, 9, 512, 1), floats(b, 9, 37, 2));
            let (along, store) = (Along::K, Store::Accumulate);
            calls.push(
                MatMul { a, b: w, c, a_along: along, b_along: along, scale: 2.0, store, product }.into(),
            );
            out.push(c);
        }
        let (a, c) = (floats(b, 9, 37, 1), floats(b, 9, 512, 2));
        let (a_along, b_along, store) = (Along::K, Along::Outer, Store::Replace);
        let product = Product::Packed;
        calls.push(MatMul { a, b: w, c, a_along, b_along, scale: 1.0, store, product }.into());
        let rows = floats(b, 3, 512, 4);
        let ids = words(b, 3, 1, &[36, 0, 11]);
        calls.push(Embed { ids, table: w, out: rows }.into());
        out.extend([c, rows]);
    }
    (calls, out)
}

/// Two slots of different length, appended to in two passes over blocks in any order.
fn kv_blocks(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let heads = Heads { query: 4, kv: 2, width: 12, scale: 0.3 };
    let table = words(b, 2, 2, &[3, 0, 1, 2]);
    let (k_blocks, v_blocks) = (floats(b, 4 * 2 * 12, 64, 5), floats(b, 4 * 2 * 64, 12, 6));
    let (mut calls, mut out) = (Vec::<Call>::new(), Vec::new());
    for segments in [vec![0, 70, 0, 0, 70, 9, 0, 1], vec![0, 1, 70, 0, 1, 5, 9, 1]] {
        let n = (segments[1] + segments[5]) as usize;
        let segments = words(b, 2, 4, &segments);
        let (q, k, v) = (floats(b, n, 48, 7), floats(b, n, 24, 8), floats(b, n, 24, 9));
        let y = floats(b, n, 48, 10);
        calls.push(KvAppend { k, v, segments, table, k_blocks, v_blocks, heads }.into());
        calls.push(AttendBlocks { q, segments, table, k_blocks, v_blocks, out: y, heads }.into());
        out.push(y);
    }
    (calls, out)
}

/// Attention over the rows `first ..` of operands that are the same for every call: q, k, v, out, lse and the
/// gradients of q, k and v.
fn attention(b: &mut dyn Backend, heads: Heads, first: usize, segments: &[u32]) -> (Vec<Call>, Vec<View>) {
    let n = segments.chunks(4).map(|s| s[1] as usize).sum();
    let mut rows = |cols, stream| floats(b, 200, cols, stream).rows_range(first, n);
    let (wide, narrow) = (heads.query * heads.width, heads.kv * heads.width);
    let [q, dout] = [1, 2].map(|s| rows(wide, s));
    let [k, v] = [3, 4].map(|s| rows(narrow, s));
    let [out, dq] = [5, 6].map(|s| rows(wide, s));
    let [dk, dv] = [7, 8].map(|s| rows(narrow, s));
    let [lse, delta] = [9, 10].map(|s| rows(heads.query, s));
    let segments = words(b, segments.len() / 4, 4, segments);
    let forward = Attend { q, k, v, segments, out, lse, heads };
    let back = AttendBack { q, k, v, segments, out, lse, dout, dq, dk, dv, delta, heads };
    (vec![forward.into(), back.into()], vec![out, lse, dq, dk, dv])
}

/// Groups of heads that do and do not divide a tile, widths that are and are not whole vectors, several tiles.
fn attention_shapes(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (mut calls, mut out) = (Vec::new(), Vec::new());
    for (query, kv, width, n) in [(6, 2, 20, 66), (1, 1, 32, 133), (7, 1, 8, 133), (110, 1, 4, 6)] {
        let heads = Heads { query, kv, width, scale: 0.3 };
        let (c, o) = attention(b, heads, 0, &[0, n, 0, 0, n, 1, 0, 0, n + 1, 66, 0, 0]);
        calls.extend(c);
        out.extend(o);
    }
    (calls, out)
}

fn top_k(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (logits, logprobs) = (floats(b, 3, 1000, 1), floats(b, 3, 7, 2));
    let ids = words(b, 3, 7, &[0; 21]);
    (vec![TopK { logits, ids, logprobs }.into()], vec![ids, logprobs])
}

fn sums(b: &mut dyn Backend, n: usize) -> View {
    let home = b.alloc((n * 8) as u64).unwrap();
    View::new(home, 0, 1, n, TypeId::F64)
}

fn hyper(b: &mut dyn Backend, values: &[f32]) -> View {
    let view = floats(b, 1, values.len(), 5);
    b.upload_f32(&view, values);
    view
}

/// Second moments: no element is negative.
fn squares(b: &mut dyn Backend, n: usize) -> View {
    let view = floats(b, 1, n, 4);
    let squares = Example::normals(4, n).iter().map(|x| x * x).collect::<Vec<_>>();
    b.upload_f32(&view, &squares);
    view
}

const ADAMW: [f32; 9] = [1e-2, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.271, 0.003, 0.5];

/// The optimizers of vectors, on several tasks.
fn optimizers(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (n, weight_decay) = (40_000, 0.1);
    let [grad, param, m, second, sgd_m, lion, lion_m, free, z] =
        [1, 2, 3, 6, 7, 8, 9, 10, 11].map(|s| floats(b, 1, n, s));
    let [v, free_v] = [1, 2].map(|_| squares(b, n));
    let (sums, weights) = (sums(b, n.div_ceil(SUM_BLOCK)), sums(b, 2));
    let (x, adamw) = (floats(b, 1, n, 12), hyper(b, &ADAMW));
    let mean = floats(b, 1, n, 13);
    let sgd = hyper(b, &[1e-2, 0.9, 1.0, 0.9, 0.5]);
    let lion_hyper = hyper(b, &[1e-2, 0.9, 0.1, 0.99, 0.01, 0.5]);
    let later = hyper(b, &[1e-2, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.003, 0.0, 0.5]);
    let first = hyper(b, &[2e-2, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.003, 1.0, 0.5]);
    let mut calls: Vec<Call> = vec![
        SumSquares { x: grad, out: sums }.into(),
        AdamW { grad, hyper: adamw, param, m, v, weight_decay }.into(),
        Sgd { grad, hyper: sgd, param: second, m: sgd_m, weight_decay }.into(),
        Lion { grad, hyper: lion_hyper, param: lion, m: lion_m, weight_decay }.into(),
    ];
    // From nothing to x, and a little further.
    for (x, share) in [(second, 1.0), (lion, 0.01)] {
        calls.push(Average { x, hyper: hyper(b, &[share]), y: mean }.into());
    }
    for hyper in [first, later, later] {
        calls.push(Extrapolate { hyper, param: free, x, z }.into());
        calls.push(ScheduleFree { grad, hyper, x, param: free, z, v: free_v, weights, weight_decay }.into());
    }
    (calls, vec![param, m, v, second, sgd_m, lion, lion_m, free, x, z, free_v, mean])
}

/// Moments of 8 bits, used and made again; the last block is not whole. The oracle holds a code in a word.
fn eight_bits(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (n, blocks) = (40_000, 40_000usize.div_ceil(CODE_BLOCK));
    let (param, hyper) = (floats(b, 1, n, 2), hyper(b, &ADAMW));
    let codes = [0, 1].map(|_| View::new(b.alloc((n * 4) as u64).unwrap(), 0, 1, n, TypeId::I8));
    let scales = [0, 1].map(|_| View::new(b.alloc((blocks * 4) as u64).unwrap(), 0, 1, blocks, TypeId::F32));
    let ([m, v], [m_scale, v_scale]) = (codes, scales);
    let step = |stream| {
        let grad = floats(b, 1, n, stream);
        AdamW8 { grad, hyper, param, m, v, m_scale, v_scale, weight_decay: 0.1 }.into()
    };
    ([1, 3, 4].map(step).to_vec(), vec![param, m_scale, v_scale])
}

/// The optimizers of matrices, on several tasks.
fn matrix_optimizers(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (r, c, weight_decay) = (300, 170, 0.1);
    let (grad, param) = (floats(b, r, c, 1), floats(b, r, c, 2));
    let (rows, cols) = (squares(b, r), squares(b, c));
    let (row_sums, parts) = (sums(b, r), sums(b, (r * c).div_ceil(SUM_BLOCK)));
    let adafactor = hyper(b, &[1e-2, 0.7, 0.3, 1e-30, 0.5, 0.5]);
    let flat = |v: View| View { rows: 1, cols: r * c, stride: r * c, ..v };
    let (m, direction, moved) = (floats(b, 1, r * c, 6), floats(b, 1, r * c, 7), floats(b, 1, r * c, 8));
    let muon = hyper(b, &[1e-2, 0.95, 0.5]);
    let calls = vec![
        FactoredMoments { grad, hyper: adafactor, rows, cols }.into(),
        FactoredSquares { grad, hyper: adafactor, rows, cols, sums: row_sums }.into(),
        FactoredStep { grad, hyper: adafactor, rows, cols, sums: row_sums, param, weight_decay }.into(),
        Momentum { grad: flat(grad), hyper: muon, m, out: direction }.into(),
        SumSquares { x: direction, out: parts }.into(),
        Normalise { sums: parts, x: direction, eps: 1e-7 }.into(),
        Descend { direction, hyper: muon, param: moved, scale: 3.0, weight_decay }.into(),
    ];
    (calls, vec![param, rows, cols, m, direction, moved])
}

/// Norms of adapted rows of every type, on several tasks.
fn row_norms(b: &mut dyn Backend) -> (Vec<Call>, Vec<View>) {
    let (a, factors) = (floats(b, 5, 512, 1), floats(b, 37, 5, 2));
    let norms = |(i, quant): (usize, &Quant)| {
        let (w, norms) = (blocks(b, 37, 512, quant.id), floats(b, 1, 37, 3 + i as u32));
        (Call::from(RowNorms { w, a, b: factors, norms, scale: 0.25 }), norms)
    };
    QUANTS.iter().enumerate().map(norms).unzip()
}

/// Lists the cases and makes a test of each against the oracle.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        const CASES: &[(&str, Case)] = &[$((stringify!($case), $case)),*];

        mod agree_with_the_oracle {
            $(#[test]
            fn $case() {
                super::agrees_with_the_oracle(super::$case);
            })*
        }
    };
}
cases! {
    products,
    products_of_bf16,
    products_of_int16,
    block_types,
    attention_shapes,
    kv_blocks,
    top_k,
    optimizers,
    eight_bits,
    matrix_optimizers,
    row_norms,
}

fn run(case: Case, backend: &mut dyn Backend) -> Vec<Vec<f32>> {
    let (calls, out) = case(backend);
    calls.iter().for_each(|c| backend.exec(c));
    let as_floats = |v: &View| match v.dtype {
        TypeId::I32 => backend.download_u32(v).iter().map(|x| *x as f32).collect(),
        _ => backend.download_f32(v),
    };
    out.iter().map(as_floats).collect()
}

fn agrees_with_the_oracle(case: Case) {
    let want = run(case, &mut Oracle::default());
    for isa in Isa::available() {
        let got = run(case, &mut CpuBackend::new(isa, 2).unwrap());
        for (i, (w, g)) in want.iter().zip(&got).enumerate() {
            let norm = w.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let error = w.iter().zip(g).map(|(w, g)| f64::from(w - g).powi(2)).sum::<f64>().sqrt();
            assert!(error <= 3e-6 * norm, "{i} on {}: off by {error:e} of {norm:e}", isa.name());
        }
    }
}

/// One source for every path. Only instructions that multiply bf16 or integers add in an order of their own.
#[test]
fn bits_do_not_depend_on_the_path() {
    for (name, case) in CASES {
        let of = |isa| {
            let values = run(*case, &mut CpuBackend::new(isa, 1).unwrap());
            values.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>()
        };
        let plain = of(Isa::Scalar);
        let own = |isa: &Isa| match *name {
            "products_of_bf16" => isa.multiplies_bf16(),
            "products_of_int16" => isa.multiplies_int16(),
            _ => false,
        };
        for isa in Isa::available().filter(|isa| !own(isa)) {
            assert!(of(isa) == plain, "{name} on {}", isa.name());
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for (name, case) in CASES {
        let bits = |threads| {
            let values = run(*case, &mut CpuBackend::new(Isa::detect(), threads).unwrap());
            values.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>()
        };
        let one = bits(1);
        for threads in [2, 3, 8] {
            assert!(bits(threads) == one, "{name} on {threads} threads");
        }
    }
}

fn times(b: &mut dyn Backend, a: View, w: View, c: View, product: Product) -> Vec<f32> {
    let (along, store) = (Along::K, Store::Replace);
    b.exec(&MatMul { a, b: w, c, a_along: along, b_along: along, scale: 1.0, store, product }.into());
    b.download_f32(&c)
}

/// A row of a product has the same bits alone as among others, and so has a column.
#[test]
fn bits_of_a_row_do_not_depend_on_its_neighbours() {
    let b = &mut CpuBackend::new(Isa::detect(), 2).unwrap();
    let a = floats(b, 40, 768, 1);
    let (all, one) = (floats(b, 40, 50, 3), floats(b, 1, 50, 4));
    for quant in QUANTS {
        let w = blocks(b, 50, 768, quant.id);
        for product in [Product::Packed, Product::Bf16, Product::Int16, Product::Dot] {
            let whole = times(b, a, w, all, product);
            for r in [0, 5, 39] {
                let row = times(b, a.rows_range(r, 1), w, one, product);
                assert_eq!(row, whole[r * 50..(r + 1) * 50], "{} row {r}", quant.id.name());
            }
            for c in [0, 3, 49] {
                let column = times(b, a.rows_range(7, 1), w.rows_range(c, 1), one.columns(0, 1), product);
                assert_eq!(column, [whole[7 * 50 + c]], "{} column {c}", quant.id.name());
            }
        }
    }
}

/// Packed into one batch, sequences have the bits that they have alone.
#[test]
fn bits_of_attention_do_not_depend_on_other_segments() {
    let run = |first, segments: &[u32]| {
        let b = &mut CpuBackend::new(Isa::detect(), 2).unwrap();
        let heads = Heads { query: 6, kv: 2, width: 20, scale: 0.3 };
        let (calls, out) = attention(b, heads, first, segments);
        calls.iter().for_each(|c| b.exec(c));
        out.iter().map(|v| (b.download_f32(v), v.cols)).collect::<Vec<_>>()
    };
    let all = run(0, &[0, 45, 0, 0, 45, 130, 0, 0, 175, 25, 0, 0]);
    for (first, n) in [(0, 45), (45, 130), (175, 25)] {
        for ((all, cols), (alone, _)) in all.iter().zip(run(first, &[0, n, 0, 0])) {
            let at = first * cols..(first + n as usize) * cols;
            assert!(all[at] == alone, "segment of {n} rows from {first}");
        }
    }
}

/// A position has the same bits whether its tokens come at once, in chunks or one by one.
#[test]
fn bits_of_attention_over_blocks_do_not_depend_on_chunks() {
    let run = |chunks: &[usize]| {
        let b = &mut CpuBackend::new(Isa::detect(), 2).unwrap();
        let heads = Heads { query: 6, kv: 2, width: 20, scale: 0.3 };
        let table = words(b, 1, 3, &[2, 0, 1]);
        let (k_blocks, v_blocks) = (floats(b, 3 * 2 * 20, 64, 5), floats(b, 3 * 2 * 64, 20, 6));
        let (q, k, v) = (floats(b, 150, 120, 7), floats(b, 150, 40, 8), floats(b, 150, 40, 9));
        let (out, mut first) = (floats(b, 150, 120, 10), 0);
        for &n in chunks {
            let segments = words(b, 1, 4, &[0, n as u32, first as u32, 0]);
            let [q, k, v, out] = [q, k, v, out].map(|x| x.rows_range(first, n));
            b.exec(&KvAppend { k, v, segments, table, k_blocks, v_blocks, heads }.into());
            b.exec(&AttendBlocks { q, segments, table, k_blocks, v_blocks, out, heads }.into());
            first += n;
        }
        b.download_f32(&out)
    };
    let whole = run(&[150]);
    assert!(run(&[1; 150]) == whole, "one by one");
    assert!(run(&[63, 2, 40, 45]) == whole, "in chunks");
}

/// Dot products over stored bytes have the same bits on every path.
#[test]
fn bits_of_dot_products_do_not_depend_on_the_path() {
    for quant in QUANTS {
        // Floats need not come in blocks: a row may end anywhere.
        let k = if quant.block() == 1 { 765 } else { 768 };
        let bits = |isa| {
            let b = &mut CpuBackend::new(isa, 1).unwrap();
            let (a, w, c) = (floats(b, 3, k, 1), blocks(b, 50, k, quant.id), floats(b, 3, 50, 3));
            times(b, a, w, c, Product::Dot).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert!(bits(Isa::detect()) == bits(Isa::Scalar), "{}", quant.id.name());
    }
}

/// A number that is none must not vanish when activations are rounded.
#[test]
fn dot_products_hand_on_what_is_not_finite() {
    let b = &mut CpuBackend::new(Isa::detect(), 1).unwrap();
    for quant in QUANTS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (a, w, c) = (floats(b, 1, 256, 1), blocks(b, 5, 256, quant.id), floats(b, 1, 5, 3));
            b.upload_f32(&a.columns(70, 1), &[bad]);
            let y = times(b, a, w, c, Product::Dot);
            assert!(y.iter().all(|y| !y.is_finite()), "{}: {y:?}", quant.id.name());
        }
    }
}

#[test]
fn every_call_is_tested() {
    let mut seen = BTreeSet::new();
    let mut oracle = Oracle::default();
    for (_, case) in CASES {
        seen.extend(case(&mut oracle).0.iter().map(Call::name));
    }
    for op in OPS {
        let mut t = Tape::new(Mode::Train, Product::Packed);
        let mut e = Example::new(&mut oracle);
        let y = (op.example)(&mut t, &mut e);
        let seed = t.view(y);
        t.seed(y, seed);
        t.backward();
        seen.extend(t.finish().calls().iter().map(Call::name));
    }
    let missing: Vec<_> = CALLS.iter().filter(|c| !seen.contains(*c)).collect();
    assert!(missing.is_empty(), "no test executes {missing:?}");
}
