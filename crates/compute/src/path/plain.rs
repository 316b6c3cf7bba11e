//! The path without assumptions.

use std::array::from_fn;

use super::{Path, ROWS, rows};
use crate::quant::half_to_f32;

pub struct Plain;

/// A value for each element of each row.
#[inline(always)]
fn each<T, const N: usize>(value: impl Fn(usize, usize) -> T) -> [[T; N]; ROWS] {
    from_fn(|r| from_fn(|i| value(r, i)))
}

/// Eight numbers of each row, four and four of them.
#[inline(always)]
fn eight<const B: usize>(b: [&[[u8; B]; 8]; ROWS], value: impl Fn([u8; B]) -> f32) -> [[[f32; 4]; ROWS]; 2] {
    from_fn(|half| each(|r, i| value(b[r][4 * half + i])))
}

#[inline(always)]
fn half(bits: [u8; 2]) -> f32 {
    half_to_f32(u16::from_le_bytes(bits))
}

impl Path for Plain {
    type Bytes = [[u8; 16]; ROWS];
    type Pairs = [[i16; 8]; ROWS];
    type Fours = [[i32; 4]; ROWS];
    type Floats = [[f32; 4]; ROWS];
    type Scales = [f32; ROWS];

    #[inline(always)]
    fn bytes(b: [&[u8; 16]; ROWS]) -> Self::Bytes {
        b.map(|b| *b)
    }
    #[inline(always)]
    fn bits(b: Self::Bytes, shift: u8, mask: u8) -> Self::Bytes {
        b.map(|b| b.map(|b| b >> shift & mask))
    }
    #[inline(always)]
    fn join(a: Self::Bytes, b: Self::Bytes, shift: u8) -> Self::Bytes {
        each(|r, i| a[r][i] | b[r][i] << shift)
    }
    #[inline(always)]
    fn fifth(b: Self::Bytes, shift: u8, bits: [[u8; 2]; ROWS]) -> Self::Bytes {
        each(|r, i| b[r][i] >> shift & 15 | (bits[r][i / 8] >> (i % 8) & 1) << 4)
    }
    #[inline(always)]
    fn look_up(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes {
        b.map(|b| b.map(|b| table[usize::from(b & 15)] as u8))
    }
    #[inline(always)]
    fn unsigned(w: [Self::Bytes; 2], x: &[[i8; 16]; 2]) -> Self::Fours {
        let ones = [[1; 8]; ROWS];
        let [a, b] = [Self::pairs(w[0], &x[0]), Self::pairs(w[1], &x[1])];
        Self::multiply(each(|r, i| a[r][i] + b[r][i]), ones)
    }
    #[inline(always)]
    fn signed(w: [Self::Bytes; 2], x: &[[i8; 16]; 2], _: &[i32; 4]) -> Self::Fours {
        let product = |r: usize, h: usize, i: usize| i32::from(w[h][r][i] as i8) * i32::from(x[h][i]);
        each(|r, i| (4 * i..4 * i + 4).map(|i| product(r, 0, i) + product(r, 1, i)).sum())
    }
    #[inline(always)]
    fn pairs(w: Self::Bytes, x: &[i8; 16]) -> Self::Pairs {
        let product = |r: usize, i: usize| i16::from(w[r][i]) * i16::from(x[i]);
        each(|r, i| product(r, 2 * i) + product(r, 2 * i + 1))
    }
    #[inline(always)]
    fn widen(b: [[u8; 8]; ROWS]) -> Self::Pairs {
        b.map(|b| b.map(|b| i16::from(b as i8)))
    }
    #[inline(always)]
    fn load_pairs(x: &[[i16; 2]; 4]) -> Self::Pairs {
        each(|_, i| x[i / 2][i % 2])
    }
    #[inline(always)]
    fn repeat(a: Self::Pairs, i: usize) -> Self::Pairs {
        a.map(|a| [a[i]; 8])
    }
    #[inline(always)]
    fn multiply(a: Self::Pairs, b: Self::Pairs) -> Self::Fours {
        let product = |r: usize, i: usize| i32::from(a[r][i]) * i32::from(b[r][i]);
        each(|r, i| product(r, 2 * i) + product(r, 2 * i + 1))
    }
    #[inline(always)]
    fn add_fours(a: Self::Fours, b: Self::Fours) -> Self::Fours {
        each(|r, i| a[r][i] + b[r][i])
    }
    #[inline(always)]
    fn small(b: Self::Bytes, i: usize) -> Self::Floats {
        each(|r, k| f32::from(b[r][4 * i + k]))
    }
    #[inline(always)]
    fn floats(a: Self::Fours) -> Self::Floats {
        a.map(|a| a.map(|a| a as f32))
    }
    #[inline(always)]
    fn splat(x: f32) -> Self::Floats {
        [[x; 4]; ROWS]
    }
    #[inline(always)]
    fn load(x: &[f32; 4]) -> Self::Floats {
        [*x; ROWS]
    }
    #[inline(always)]
    fn lane(a: Self::Floats, i: usize) -> Self::Floats {
        a.map(|a| [a[i]; 4])
    }
    #[inline(always)]
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        each(|r, i| a[r][i] * b[r][i])
    }
    #[inline(always)]
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        each(|r, i| a[r][i].mul_add(b[r][i], c[r][i]))
    }
    #[inline(always)]
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        each(|r, i| a[r][i] + b[r][i])
    }
    #[inline(always)]
    fn totals(a: Self::Floats) -> Self::Scales {
        a.map(|[a, b, c, d]| (a + c) + (b + d))
    }
    #[inline(always)]
    fn scales(bits: [&[u8; 2]; ROWS]) -> Self::Scales {
        bits.map(|b| half(*b))
    }
    #[inline(always)]
    fn scale_pairs(bits: [&[u8; 4]; ROWS]) -> (Self::Scales, Self::Scales) {
        (bits.map(|b| half([b[0], b[1]])), bits.map(|b| half([b[2], b[3]])))
    }
    #[inline(always)]
    fn no_scales() -> Self::Scales {
        [0.0; ROWS]
    }
    #[inline(always)]
    fn mul_scales(a: Self::Scales, x: f32) -> Self::Scales {
        a.map(|a| a * x)
    }
    #[inline(always)]
    fn mul_add_scales(a: Self::Scales, x: f32, c: Self::Scales) -> Self::Scales {
        rows!(r => a[r].mul_add(x, c[r]))
    }
    #[inline(always)]
    fn add_scales(a: Self::Scales, b: Self::Scales) -> Self::Scales {
        rows!(r => a[r] + b[r])
    }
    #[inline(always)]
    fn spread(a: Self::Scales) -> Self::Floats {
        a.map(|a| [a; 4])
    }
    #[inline(always)]
    fn store_scales(a: Self::Scales) -> [f32; ROWS] {
        a
    }
    #[inline(always)]
    fn singles(b: [&[[u8; 4]; 8]; ROWS]) -> [Self::Floats; 2] {
        eight(b, f32::from_le_bytes)
    }
    #[inline(always)]
    fn halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2] {
        eight(b, half)
    }
    #[inline(always)]
    fn upper_halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2] {
        eight(b, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
    }
    #[inline(always)]
    fn prefetch(_: *const u8) {}
}
