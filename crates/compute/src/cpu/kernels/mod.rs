//! One file an operation, forward and backward. A kernel cuts its work into tasks by shape alone, and each output
//! element has one writer.

pub mod adafactor;
pub mod adamw;
pub mod adamw8;
pub mod attend;
pub mod attend_back;
pub mod average;
pub mod cross_entropy;
pub mod dropout;
pub mod embed;
pub mod gated;
pub mod kv;
mod lanes;
pub mod lion;
pub mod magnitude;
pub mod muon;
pub mod noise;
pub mod norm;
pub mod rope;
pub mod rows;
pub mod schedule_free;
mod segments;
pub mod sgd;
pub mod sums;
mod tile;
pub mod top;
pub mod turns;

use std::ops::Range;

use crate::cpu::Cx;
use crate::cpu::pool::Scratch;
use crate::view::View;

/// Elements a task should have to be worth its dispatch.
const TASK: usize = 16_384;

impl Cx<'_> {
    /// Calls `f` on ranges that cover 0..n, each of about [`TASK`] elements when one index stands for `size`.
    fn by_blocks(&mut self, n: usize, size: usize, f: impl Fn(Range<usize>, &mut Scratch) + Sync) {
        let block = (TASK / size.max(1)).max(1);
        self.pool.run(n.div_ceil(block), &|task, scratch| {
            f(task * block..((task + 1) * block).min(n), scratch);
        });
    }

    /// Calls `f` on strips of columns that cover 0..cols, for sums over `rows` rows in order: a column has one task.
    fn by_strips(&mut self, rows: usize, cols: usize, f: impl Fn(Range<usize>) + Sync) {
        let strip = if rows * cols <= TASK { cols.max(1) } else { 64 };
        self.pool.run(cols.div_ceil(strip), &|task, _| f(task * strip..((task + 1) * strip).min(cols)));
    }

    /// Calls `f` on the same elements of several vectors that are written, task by task, and says which these are.
    fn by_parts<const N: usize>(
        &mut self,
        vectors: [&View; N],
        f: impl Fn(Range<usize>, [&mut [f32]; N]) + Sync,
    ) {
        let vectors = vectors.map(|v| self.memory.rows_mut::<f32>(v));
        let n = vectors[0].cols();
        assert!(vectors.iter().all(|v| v.len() == 1 && v.cols() == n), "vectors of one length");
        self.by_blocks(n, 1, |at, _| {
            // SAFETY: tasks own disjoint elements, and the vectors of a call are apart.
            let mut parts = vectors.map(|v| unsafe { v.part(0..1, at.clone()) });
            f(at, parts.each_mut().map(|p| p.row(0)));
        });
    }
}
