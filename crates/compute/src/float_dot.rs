//! Dot products in floats: a row of activations times stored rows of floats, which become singles in registers.

use std::marker::PhantomData;

use crate::isa::Isa;
use crate::path::{self, Path, ROWS, Work};

/// Elements of a step: a row has two times four partial sums.
const STEP: usize = 8;

/// A type of numbers with `B` bytes.
pub trait Stored<const B: usize> {
    /// Eight of each row as singles, four and four of them.
    fn eight<P: Path>(b: [&[[u8; B]; STEP]; ROWS]) -> [P::Floats; 2];
}

/// The dot product of x with each stored row, `stride` bytes apart: a codec's `dot`.
pub fn dot<T: Stored<B>, const B: usize>(isa: Isa, x: &[f32], w: &[u8], stride: usize, sums: &mut [f32]) {
    path::run(isa, Dot::<T, B> { x, w, stride, sums, stored: PhantomData });
}

/// The operands of [`dot`].
struct Dot<'a, T, const B: usize> {
    x: &'a [f32],
    w: &'a [u8],
    stride: usize,
    sums: &'a mut [f32],
    stored: PhantomData<T>,
}

impl<T: Stored<B>, const B: usize> Work for Dot<'_, T, B> {
    /// Rows in groups. The last group is filled up with its last row, whose bits do not depend on its neighbours.
    #[inline(always)]
    fn run<P: Path>(self) {
        let (n, k) = (self.sums.len(), self.x.len());
        path::prefetch_first::<P>(self.w);
        for (i, sums) in self.sums.chunks_mut(ROWS).enumerate() {
            let mut rows: [&[[u8; B]]; ROWS] = [&[]; ROWS];
            for r in 0..ROWS {
                rows[r] = &self.w[(ROWS * i + r).min(n - 1) * self.stride..][..k * B].as_chunks().0[..k];
            }
            let totals = group::<T, P, B>(self.x, rows);
            match sums.first_chunk_mut() {
                Some(four) => *four = totals,
                None => sums.copy_from_slice(&totals[..sums.len()]),
            }
        }
    }
}

#[inline(always)]
fn group<T: Stored<B>, P: Path, const B: usize>(x: &[f32], rows: [&[[u8; B]]; ROWS]) -> [f32; ROWS] {
    let mut sums = [P::splat(0.0); 2];
    let (whole, rest) = x.as_chunks::<STEP>();
    let mut steps: [&[[[u8; B]; STEP]]; ROWS] = [&[]; ROWS];
    for r in 0..ROWS {
        steps[r] = &rows[r].as_chunks().0[..whole.len()];
    }
    for (i, x) in whole.iter().enumerate() {
        path::prefetch::<P>(rows[0].as_flattened(), i * ROWS * STEP * B, ROWS * STEP * B);
        step::<T, P, B>(&mut sums, x, [&steps[0][i], &steps[1][i], &steps[2][i], &steps[3][i]]);
    }
    if !rest.is_empty() {
        // Zeros where the row ends.
        let mut last = [0.0; STEP];
        last[..rest.len()].copy_from_slice(rest);
        let mut w = [[[0; B]; STEP]; ROWS];
        for r in 0..ROWS {
            w[r][..rest.len()].copy_from_slice(&rows[r][x.len() - rest.len()..]);
        }
        step::<T, P, B>(&mut sums, &last, [&w[0], &w[1], &w[2], &w[3]]);
    }
    P::store_scales(P::totals(P::add(sums[0], sums[1])))
}

#[inline(always)]
fn step<T: Stored<B>, P: Path, const B: usize>(
    sums: &mut [P::Floats; 2],
    x: &[f32; STEP],
    w: [&[[u8; B]; STEP]; ROWS],
) {
    let (x, w) = (x.as_chunks::<4>().0, T::eight::<P>(w));
    for half in 0..2 {
        sums[half] = P::mul_add(P::load(&x[half]), w[half], sums[half]);
    }
}
