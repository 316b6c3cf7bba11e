//! Products as dot products over the stored rows of b: for a few rows of a, where packing would not pay.
//!
//! Block types are multiplied as they are, with rows of a that are rounded to int8 once; floats as floats.

use planish_base::TypeId;

use super::pack::Operand;
use crate::call::{Along, MatMul, Store};
use crate::cpu::Cx;
use crate::cpu::memory::RowsMut;
use crate::int8::{self, Int8Block};
use crate::isa::isa_fn;
use crate::quant::Dot;

/// Multiplications that are worth a task.
const TASK: usize = 65_536;
/// Partial sums of a dot product.
const LANES: usize = 16;
/// Rows of b that are multiplied side by side, so that their chains of additions overlap.
const TOGETHER: usize = 4;
/// Rows of b that are decoded at a time.
const ROWS: usize = 8;

pub fn dot(cx: &mut Cx, call: &MatMul, b: &Operand, c: RowsMut<f32>) {
    assert_eq!((call.a_along, call.b_along), (Along::K, Along::K), "dot products run along k");
    match b.quant.dot {
        Some(dot) => int8_dot(cx, call, b, c, dot),
        None => float_dot(cx, call, b, c),
    }
}

fn int8_dot(cx: &mut Cx, call: &MatMul, b: &Operand, c: RowsMut<f32>, dot: Dot) {
    let a = cx.memory.rows::<f32>(&call.a);
    let (m, n, isa) = (c.len(), c.cols(), cx.isa);
    let blocks = b.k / int8::BLOCK;
    if cx.rounded.len() < m * blocks {
        cx.rounded.resize(m * blocks, Int8Block::default());
    }
    for i in 0..m {
        int8::round(isa, a.row(i), &mut cx.rounded[i * blocks..(i + 1) * blocks]);
    }
    let rounded = &*cx.rounded;
    let block = (TASK / (b.k * m).max(1)).clamp(1, n.max(1));
    cx.pool.run(n.div_ceil(block), &|task, scratch| {
        let cols = task * block..((task + 1) * block).min(n);
        let sums = scratch.floats(cols.len());
        let rows = &b.bytes[cols.start * b.stride..];
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { c.part(0..m, cols) };
        for i in 0..m {
            dot(isa, &rounded[i * blocks..(i + 1) * blocks], rows, b.stride, sums);
            for (c, sum) in part.row(i).iter_mut().zip(&*sums) {
                write(c, call.scale * sum, call.store);
            }
        }
    });
}

fn float_dot(cx: &mut Cx, call: &MatMul, b: &Operand, c: RowsMut<f32>) {
    let a = cx.memory.rows::<f32>(&call.a);
    // Weights that are floats already need no copy.
    let floats = (call.b.dtype == TypeId::F32 && call.b.is_dense()).then(|| cx.memory.rows::<f32>(&call.b));
    let (m, n, k, isa) = (c.len(), c.cols(), b.k, cx.isa);
    let block = (TASK / (k * m).max(1)).clamp(1, n.max(1));
    cx.pool.run(n.div_ceil(block), &|task, scratch| {
        let cols = task * block..((task + 1) * block).min(n);
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { c.part(0..m, cols.clone()) };
        let step = if floats.is_some() { cols.len() } else { ROWS };
        for first in cols.clone().step_by(step) {
            let rows = step.min(cols.end - first);
            let w = match floats {
                Some(w) => w.dense(first, rows),
                None => {
                    let w = scratch.floats(rows * k);
                    for (i, row) in w.chunks_exact_mut(k).enumerate() {
                        b.quant.decode_range(isa, &b.bytes[(first + i) * b.stride..], 0, row);
                    }
                    w
                }
            };
            for i in 0..m {
                let out = &mut part.row(i)[first - cols.start..][..rows];
                products(isa, a.row(i), w, call.scale, call.store, out);
            }
        }
    });
}

isa_fn! {
    /// out (+)= scale * the dot product of x with each row of w.
    fn products(x: &[f32], w: &[f32], scale: f32, store: Store, out: &mut [f32]) {
        let k = x.len();
        let whole = out.len() / TOGETHER * TOGETHER;
        for i in (0..whole).step_by(TOGETHER) {
            let sums = product::<TOGETHER>(x, &w[i * k..(i + TOGETHER) * k]);
            (0..TOGETHER).for_each(|r| write(&mut out[i + r], scale * sums[r], store));
        }
        for i in whole..out.len() {
            let [sum] = product::<1>(x, &w[i * k..(i + 1) * k]);
            write(&mut out[i], scale * sum, store);
        }
    }
}

#[inline(always)]
fn write(c: &mut f32, sum: f32, store: Store) {
    *c = if store == Store::Replace { sum } else { *c + sum };
}

/// Dot products of x with R rows at once: each in LANES partial sums, added pairwise at the end. A row's bits do not
/// depend on R.
#[inline(always)]
fn product<const R: usize>(x: &[f32], w: &[f32]) -> [f32; R] {
    let k = x.len();
    let rows: [&[f32]; R] = std::array::from_fn(|r| &w[r * k..(r + 1) * k]);
    let mut sums = [[0f32; LANES]; R];
    let whole = k / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        let x = &x[i..i + LANES];
        for r in 0..R {
            let w = &rows[r][i..i + LANES];
            for l in 0..LANES {
                sums[r][l] = x[l].mul_add(w[l], sums[r][l]);
            }
        }
    }
    for i in whole..k {
        for r in 0..R {
            sums[r][i - whole] = x[i].mul_add(rows[r][i], sums[r][i - whole]);
        }
    }
    fold(&sums)
}

/// Adds up the lanes of each row. A function of its own: seen together with the loop above, the compiler would make
/// pairs of lanes out of the whole vectors there.
#[inline(never)]
fn fold<const R: usize>(sums: &[[f32; LANES]; R]) -> [f32; R] {
    sums.map(|s| {
        let eight: [f32; 8] = std::array::from_fn(|l| s[l] + s[l + 8]);
        let four: [f32; 4] = std::array::from_fn(|l| eight[l] + eight[l + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    })
}
