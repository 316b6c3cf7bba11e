//! Products as dot products over the stored rows of b: for a few rows of a, where packing would not pay.
//!
//! Block types are multiplied as they are, with rows of a that are rounded to int8 once; floats as floats.

use super::pack::Operand;
use crate::call::{Along, MatMul, Store};
use crate::cpu::Cx;
use crate::cpu::memory::RowsMut;
use crate::quant::Dot;

/// Multiplications that are worth another worker.
const SHARE: usize = 32_768;
/// Multiplications that are worth a task of their own where every worker has one.
const TASK: usize = 131_072;
/// Tasks a worker of a large product: a late worker is helped out, but few tasks begin, each with memory that nobody
/// asked for ahead.
const MOST_TASKS: usize = 16;

pub fn dot(cx: &mut Cx, call: &MatMul, b: &Operand, c: RowsMut<f32>) {
    assert_eq!((call.a_along, call.b_along), (Along::K, Along::K), "dot products run along k");
    let a = cx.memory.rows::<f32>(&call.a);
    let (m, n, isa) = (c.len(), c.cols(), cx.isa);
    if let Dot::Int8(_) = b.quant.dot {
        cx.rounded.reserve(m, b.k);
        (0..m).for_each(|i| cx.rounded.round(isa, i, a.row(i)));
    }
    let rounded = &*cx.rounded;
    let tasks = tasks(m * n * b.k, cx.pool.threads()).min(n);
    cx.pool.run(tasks, &|task, scratch| {
        let cols = n * task / tasks..n * (task + 1) / tasks;
        let sums = scratch.floats(cols.len());
        let rows = &b.bytes[cols.start * b.stride..];
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { c.part(0..m, cols) };
        for i in 0..m {
            match b.quant.dot {
                Dot::Int8(dot) => dot(isa, rounded.row(i), rows, b.stride, sums),
                Dot::Float(dot) => dot(isa, a.row(i), rows, b.stride, sums),
            }
            for (c, sum) in part.row(i).iter_mut().zip(&*sums) {
                let old = if call.store == Store::Replace { 0.0 } else { *c };
                *c = old + call.scale * sum;
            }
        }
    });
}

/// As many tasks for each worker, so that all end together; fewer for a product that is too small for all workers.
fn tasks(multiplications: usize, threads: usize) -> usize {
    let each = (multiplications / (TASK * threads)).clamp(1, MOST_TASKS);
    (each * threads).min(multiplications.div_ceil(SHARE)).max(1)
}
