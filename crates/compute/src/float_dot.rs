//! Dot products in floats: a row of activations times stored rows of floats, which become singles in registers.

use crate::isa::Isa;
use crate::path::{self, Path};

/// Stored rows that are multiplied side by side, so that their chains of additions overlap.
const ROWS: usize = 4;
/// Elements of a step: a row has two vectors of four partial sums.
const STEP: usize = 8;

/// A type of numbers with `B` bytes.
pub trait Stored<const B: usize> {
    /// Four of them as singles.
    fn four<P: Path>(b: &[[u8; B]; 4]) -> P::Floats;
}

/// The dot product of x with each stored row, `stride` bytes apart: a codec's `dot`.
pub fn dot<T: Stored<B>, const B: usize>(isa: Isa, x: &[f32], w: &[u8], stride: usize, sums: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn on_avx2<T: Stored<B>, const B: usize>(x: &[f32], w: &[u8], stride: usize, sums: &mut [f32]) {
        rows::<T, path::avx2::Avx2, B>(x, w, stride, sums);
    }
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 {
        // SAFETY: a backend with this path exists only where the machine has these features.
        return unsafe { on_avx2::<T, B>(x, w, stride, sums) };
    }
    rows::<T, path::Plain, B>(x, w, stride, sums)
}

/// Rows in groups. The last group is filled up with its last row, whose bits do not depend on its neighbours.
#[inline(always)]
fn rows<T: Stored<B>, P: Path, const B: usize>(x: &[f32], w: &[u8], stride: usize, sums: &mut [f32]) {
    let n = sums.len();
    path::prefetch_first::<P>(w);
    for first in (0..n).step_by(ROWS) {
        let mut rows: [&[[u8; B]]; ROWS] = [&[]; ROWS];
        for r in 0..ROWS {
            rows[r] = &w[(first + r).min(n - 1) * stride..][..x.len() * B].as_chunks().0[..x.len()];
        }
        let totals = group::<T, P, B>(x, rows);
        let left = ROWS.min(n - first);
        sums[first..first + left].copy_from_slice(&totals[..left]);
    }
}

#[inline(always)]
fn group<T: Stored<B>, P: Path, const B: usize>(x: &[f32], rows: [&[[u8; B]]; ROWS]) -> [f32; ROWS] {
    let mut sums = [[P::splat(0.0); 2]; ROWS];
    let (whole, rest) = x.as_chunks::<STEP>();
    let mut steps: [&[[[u8; B]; STEP]]; ROWS] = [&[]; ROWS];
    for r in 0..ROWS {
        steps[r] = &rows[r].as_chunks().0[..whole.len()];
    }
    for (i, x) in whole.iter().enumerate() {
        path::prefetch::<P>(rows[0].as_flattened(), i * ROWS * STEP * B, ROWS * STEP * B);
        for r in 0..ROWS {
            step::<T, P, B>(&mut sums[r], x, &steps[r][i]);
        }
    }
    if !rest.is_empty() {
        // Zeros where the row ends.
        let mut last = [0.0; STEP];
        last[..rest.len()].copy_from_slice(rest);
        for r in 0..ROWS {
            let mut w = [[0; B]; STEP];
            w[..rest.len()].copy_from_slice(&rows[r][x.len() - rest.len()..]);
            step::<T, P, B>(&mut sums[r], &last, &w);
        }
    }
    let mut totals = [0.0; ROWS];
    for r in 0..ROWS {
        let [a, b, c, d] = P::store(P::add(sums[r][0], sums[r][1]));
        totals[r] = (a + c) + (b + d);
    }
    totals
}

#[inline(always)]
fn step<T: Stored<B>, P: Path, const B: usize>(
    sums: &mut [P::Floats; 2],
    x: &[f32; STEP],
    w: &[[u8; B]; STEP],
) {
    let (x, w) = (x.as_chunks::<4>().0, w.as_chunks::<4>().0);
    for half in 0..2 {
        sums[half] = P::mul_add(P::load(&x[half]), T::four::<P>(&w[half]), sums[half]);
    }
}
