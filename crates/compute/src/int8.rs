//! Dot products in integers: a row of activations rounded to int8 times rows of stored blocks.
//!
//! The products of a block are added as integers, so exactly; only then do they meet the scales. Blocks are added as
//! floats from left to right in four partial sums, on every path the same. Minima and offsets of a type (x = d q + m)
//! are multiplied with the sum of a block's activations, so that the stored bits can stay unsigned.

use std::marker::PhantomData;

use crate::isa::{Isa, isa_fn};
use crate::path::{self, Path, ROWS, Work};

/// Elements of an activation block.
pub const BLOCK: usize = 32;

/// 1.5 * 2^23: a small number plus it is rounded to a whole one, whose two's complement ends the sum's bits.
pub const ROUND: f32 = 12_582_912.0;

/// The scale that makes `steps` of a block's largest magnitude, given as bits, and its inverse, 0 where the scale would be
/// subnormal. Compared as bits a NaN is larger than every number: it or an infinity makes the scale one, which spoils the
/// products as it should.
#[inline(always)]
pub fn scale_of(largest: u32, steps: f32) -> (f32, f32) {
    let scale = f32::from_bits(largest) / steps;
    (scale, if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 })
}

/// Rows of activations x as scale * q, block by block.
#[derive(Default)]
pub struct Int8Rows {
    /// Blocks a row.
    blocks: usize,
    q: Vec<[[i8; 16]; 2]>,
    halves: Vec<[i16; 2]>,
    offsets: Vec<[i32; 4]>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

/// One rounded row: a place for each block of 32.
#[derive(Clone, Copy, Debug)]
pub struct Int8Row<'a> {
    /// x / scale rounded to nearest, ties to even: from -127 to 127.
    pub q: &'a [[[i8; 16]; 2]],
    /// The sum of q over each half of the block.
    pub halves: &'a [[i16; 2]],
    /// -128 times the sum of each four of q in one half and the same four in the other: what multiplying weights + 128
    /// as unsigned bytes adds too much.
    pub offsets: &'a [[i32; 4]],
    /// max |x| / 127.
    pub scales: &'a [f32],
    /// scale times the sum of q.
    pub sums: &'a [f32],
}

impl Int8Rows {
    /// Makes room for so many rows of so many elements, whole blocks. Memory is never given back.
    pub fn reserve(&mut self, rows: usize, k: usize) {
        self.blocks = k / BLOCK;
        let n = rows * self.blocks;
        if n > self.q.len() {
            self.q.resize(n, [[0; 16]; 2]);
            self.halves.resize(n, [0; 2]);
            self.offsets.resize(n, [0; 4]);
            self.scales.resize(n, 0.0);
            self.sums.resize(n, 0.0);
        }
    }

    /// Rounds row `i`. A NaN or an infinity makes the scale of its block NaN or infinite, which spoils the products
    /// as it would in floats; a block whose scale would be subnormal counts as zero.
    pub fn round(&mut self, isa: Isa, i: usize, x: &[f32]) {
        let places = i * self.blocks..(i + 1) * self.blocks;
        round(
            isa,
            x,
            &mut self.q[places.clone()],
            &mut self.halves[places.clone()],
            &mut self.offsets[places.clone()],
            &mut self.scales[places.clone()],
            &mut self.sums[places],
        );
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> Int8Row<'_> {
        let places = i * self.blocks..(i + 1) * self.blocks;
        Int8Row {
            q: &self.q[places.clone()],
            halves: &self.halves[places.clone()],
            offsets: &self.offsets[places.clone()],
            scales: &self.scales[places.clone()],
            sums: &self.sums[places],
        }
    }
}

isa_fn! {
    fn round(x: &[f32], q: &mut [[[i8; 16]; 2]], halves: &mut [[i16; 2]], offsets: &mut [[i32; 4]], scales: &mut [f32], sums: &mut [f32]) {
        let places = q.iter_mut().zip(halves).zip(offsets).zip(scales.iter_mut().zip(sums));
        for (x, (((q, halves), offsets), (scale, sum))) in x.as_chunks::<BLOCK>().0.iter().zip(places) {
            let inverse;
            (*scale, inverse) = scale_of(x.iter().map(|v| v.abs().to_bits()).fold(0, u32::max), 127.0);
            for (i, q) in q.as_flattened_mut().iter_mut().enumerate() {
                *q = (x[i] * inverse + ROUND).to_bits() as i8;
            }
            for (i, offset) in offsets.iter_mut().enumerate() {
                let sum: i32 = (4 * i..4 * i + 4).map(|i| i32::from(q[0][i]) + i32::from(q[1][i])).sum();
                *offset = -128 * sum;
            }
            *halves = q.map(|q| q.iter().map(|q| i16::from(*q)).sum());
            *sum = *scale * f32::from(halves[0] + halves[1]);
        }
    }
}

/// N blocks of a rounded row: what one stored block is multiplied with.
pub struct Blocks<'a, const N: usize> {
    /// As in [`Int8Row`].
    pub q: &'a [[[i8; 16]; 2]; N],
    /// As in [`Int8Row`].
    pub halves: &'a [[i16; 2]; N],
    /// As in [`Int8Row`].
    pub offsets: &'a [[i32; 4]; N],
    /// As in [`Int8Row`].
    pub scales: &'a [f32; N],
    /// As in [`Int8Row`].
    pub sums: &'a [f32; N],
}

/// How the stored blocks of a type are multiplied: `BYTES` bytes hold as many elements as `N` blocks of activations.
///
/// A trait and no closure, since only a method can be forced into the code of its instruction set.
pub trait Products<const BYTES: usize, const N: usize> {
    /// Adds the products of one stored block of each row.
    fn add<P: Path>(sums: &mut Sums<P>, stored: [&[u8; BYTES]; ROWS], x: &Blocks<N>);
}

/// The dot products of rows so far.
pub struct Sums<P: Path> {
    /// Four partial sums of each row.
    pub rows: P::Floats,
    /// What the minima add to each row, for types that keep one scale a block.
    pub minima: P::Scales,
}

impl<P: Path> Sums<P> {
    /// Adds sums of products: `scale * fours`.
    #[inline(always)]
    pub fn add(&mut self, scale: P::Floats, fours: P::Fours) {
        self.rows = P::mul_add(scale, P::floats(fours), self.rows);
    }

    /// Adds the sums of products of a block that has one scale a row.
    #[inline(always)]
    pub fn add_block(&mut self, scale: P::Scales, x_scale: f32, fours: P::Fours) {
        self.add(P::spread(P::mul_scales(scale, x_scale)), fours);
    }

    /// Adds what a minimum of each row contributes to a block: itself times the sum of x.
    #[inline(always)]
    pub fn add_minima(&mut self, minima: P::Scales, x_sum: f32) {
        self.minima = P::mul_add_scales(minima, x_sum, self.minima);
    }

    #[inline(always)]
    fn totals(&self) -> [f32; ROWS] {
        P::store_scales(P::add_scales(P::totals(self.rows), self.minima))
    }
}

/// The dot product of x with each stored row, `stride` bytes apart: a codec's `dot`.
pub fn dot<T: Products<BYTES, N>, const BYTES: usize, const N: usize>(
    isa: Isa,
    x: Int8Row,
    w: &[u8],
    stride: usize,
    sums: &mut [f32],
) {
    path::run(isa, Dot::<T, BYTES, N> { x, w, stride, sums, products: PhantomData });
}

/// The operands of [`dot`].
struct Dot<'a, T, const BYTES: usize, const N: usize> {
    x: Int8Row<'a>,
    w: &'a [u8],
    stride: usize,
    sums: &'a mut [f32],
    products: PhantomData<T>,
}

impl<T: Products<BYTES, N>, const BYTES: usize, const N: usize> Work for Dot<'_, T, BYTES, N> {
    /// Rows in groups. The last group is filled up with its last row, whose bits do not depend on its neighbours.
    #[inline(always)]
    fn run<P: Path>(self) {
        let n = self.sums.len();
        path::prefetch_first::<P>(self.w);
        for (i, sums) in self.sums.chunks_mut(ROWS).enumerate() {
            let mut rows: [&[u8]; ROWS] = [&[]; ROWS];
            for r in 0..ROWS {
                rows[r] = &self.w[(ROWS * i + r).min(n - 1) * self.stride..];
            }
            let totals = group::<T, P, BYTES, N>(self.x, rows);
            match sums.first_chunk_mut() {
                Some(four) => *four = totals,
                None => sums.copy_from_slice(&totals[..sums.len()]),
            }
        }
    }
}

#[inline(always)]
fn group<T: Products<BYTES, N>, P: Path, const BYTES: usize, const N: usize>(
    x: Int8Row,
    rows: [&[u8]; ROWS],
) -> [f32; ROWS] {
    let (q, halves, offsets) =
        (x.q.as_chunks::<N>().0, x.halves.as_chunks::<N>().0, x.offsets.as_chunks::<N>().0);
    let (scales, block_sums) = (x.scales.as_chunks::<N>().0, x.sums.as_chunks::<N>().0);
    let n = q.len();
    assert!(
        halves.len() == n && offsets.len() == n && scales.len() == n && block_sums.len() == n,
        "parts of one row"
    );
    let mut blocks: [&[[u8; BYTES]]; ROWS] = [&[]; ROWS];
    for r in 0..ROWS {
        blocks[r] = &rows[r][..n * BYTES].as_chunks().0[..n];
    }
    let mut sums = Sums::<P> { rows: P::splat(0.0), minima: P::no_scales() };
    for i in 0..n {
        path::prefetch::<P>(rows[0], i * ROWS * BYTES, ROWS * BYTES);
        let x = Blocks {
            q: &q[i],
            halves: &halves[i],
            offsets: &offsets[i],
            scales: &scales[i],
            sums: &block_sums[i],
        };
        T::add(&mut sums, [&blocks[0][i], &blocks[1][i], &blocks[2][i], &blocks[3][i]], &x);
    }
    sums.totals()
}
