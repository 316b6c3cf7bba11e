//! Dot products in integers: a row of activations rounded to int8 times rows of stored blocks.
//!
//! The products of a block are added as integers, so exactly; only then do they meet the scales. Blocks are added as
//! floats from left to right in eight partial sums, on every path the same.

use crate::isa::{Isa, isa_fn};

/// Elements of an activation block.
pub const BLOCK: usize = 32;
/// Stored rows that are multiplied side by side, so that their chains of additions overlap.
const TOGETHER: usize = 4;
/// Partial sums of a row. Lane l takes elements 4l to 4l + 3 of a block: what two vector instructions multiply and
/// add in pairs of pairs.
const LANES: usize = 8;

/// 1.5 * 2^23: a small number plus it is rounded to a whole one, whose two's complement ends the sum's bits.
const ROUND: f32 = 12_582_912.0;

/// 32 activations x as scale * q.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Int8Block {
    /// max |x| / 127.
    pub scale: f32,
    /// scale times the sum of q, for types with a minimum.
    pub sum: f32,
    /// x / scale rounded to nearest, ties to even: from -127 to 127.
    pub q: [i8; BLOCK],
}

isa_fn! {
    /// Rounds a row, block by block. A NaN or an infinity makes the scale NaN or infinite, which spoils the products
    /// as it would in floats; a block whose scale would be subnormal counts as zero.
    pub fn round(x: &[f32], out: &mut [Int8Block]) {
        for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(out) {
            // Compared as bits, a NaN is larger than every number.
            let max = x.iter().map(|v| v.abs().to_bits()).fold(0, u32::max);
            let scale = f32::from_bits(max) / 127.0;
            let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
            for i in 0..BLOCK {
                block.q[i] = (x[i] * inverse + ROUND).to_bits() as i8;
            }
            let sum: i32 = block.q.iter().map(|q| i32::from(*q)).sum();
            (block.scale, block.sum) = (scale, scale * sum as f32);
        }
    }
}

/// How the stored blocks of a type are multiplied: `BYTES` bytes hold as many elements as `N` blocks of activations.
///
/// A trait and no closure, since only a method can be forced into the code of its instruction set.
pub trait Products<const BYTES: usize, const N: usize> {
    /// Adds the products of one stored block.
    fn add<P: Path>(sum: &mut Sum, stored: &[u8; BYTES], x: &[Int8Block; N]);
}

/// The dot product of a row so far.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    /// Partial sums of products.
    pub lanes: [f32; LANES],
    /// The part of the types' minima.
    pub minima: f32,
}

/// What an instruction set does better than compiled loops.
pub trait Path {
    /// A half-precision number.
    fn half(bits: [u8; 2]) -> f32;
    /// lanes += scale * (products of w and q, four a lane, those of each half of the block times its factor).
    fn add(lanes: &mut [f32; LANES], scale: f32, w: &[i8; BLOCK], factors: [i16; 2], q: &[i8; BLOCK]);
}

/// The path without assumptions.
struct Plain;

impl Path for Plain {
    #[inline(always)]
    fn half(bits: [u8; 2]) -> f32 {
        crate::quant::half_to_f32(u16::from_le_bytes(bits))
    }

    #[inline(always)]
    fn add(lanes: &mut [f32; LANES], scale: f32, w: &[i8; BLOCK], factors: [i16; 2], q: &[i8; BLOCK]) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let product = |i: usize| i32::from(w[i]) * i32::from(q[i]);
            let sum: i32 = (4 * l..4 * l + 4).map(product).sum();
            *lane = scale.mul_add((i32::from(factors[l / 4]) * sum) as f32, *lane);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{BLOCK, LANES, Path};

    /// For functions that are compiled for AVX2, FMA and F16C.
    pub struct Avx2;

    impl Path for Avx2 {
        #[inline(always)]
        fn half(bits: [u8; 2]) -> f32 {
            let bits = i32::from(u16::from_le_bytes(bits));
            // SAFETY: the path is taken only where the machine has F16C.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
        }

        #[inline(always)]
        fn add(lanes: &mut [f32; LANES], scale: f32, w: &[i8; BLOCK], factors: [i16; 2], q: &[i8; BLOCK]) {
            // SAFETY: the path is taken only where the machine has AVX2 and FMA; the loads and the store are of
            // whole arrays, and need no alignment.
            unsafe {
                let w = _mm256_loadu_si256(w.as_ptr().cast());
                let q = _mm256_loadu_si256(q.as_ptr().cast());
                // The instruction multiplies unsigned with signed bytes: the sign goes over to q, which is never
                // -128. A pair is at most 2 * 128 * 127, so nothing saturates.
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
                let [low, high] = factors.map(|f| _mm_set1_epi16(f));
                let fours = _mm256_madd_epi16(pairs, _mm256_set_m128i(high, low));
                let products = _mm256_cvtepi32_ps(fours);
                let sum = _mm256_fmadd_ps(_mm256_set1_ps(scale), products, _mm256_loadu_ps(lanes.as_ptr()));
                _mm256_storeu_ps(lanes.as_mut_ptr(), sum);
            }
        }
    }
}

/// The dot product of x with each stored row, `stride` bytes apart: a codec's `dot`.
pub fn dot<T: Products<BYTES, N>, const BYTES: usize, const N: usize>(
    isa: Isa,
    x: &[Int8Block],
    w: &[u8],
    stride: usize,
    sums: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn on_avx2<T: Products<BYTES, N>, const BYTES: usize, const N: usize>(
        x: &[Int8Block],
        w: &[u8],
        stride: usize,
        sums: &mut [f32],
    ) {
        rows::<T, avx2::Avx2, BYTES, N>(x, w, stride, sums);
    }
    match isa {
        // SAFETY: a backend with this path exists only where the machine has these features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => unsafe { on_avx2::<T, BYTES, N>(x, w, stride, sums) },
        _ => rows::<T, Plain, BYTES, N>(x, w, stride, sums),
    }
}

#[inline(always)]
fn rows<T: Products<BYTES, N>, P: Path, const BYTES: usize, const N: usize>(
    x: &[Int8Block],
    w: &[u8],
    stride: usize,
    sums: &mut [f32],
) {
    let x = x.as_chunks::<N>().0;
    let (groups, rest) = sums.as_chunks_mut::<TOGETHER>();
    for (g, sums) in groups.iter_mut().enumerate() {
        *sums = group::<T, P, TOGETHER, BYTES, N>(x, &w[g * TOGETHER * stride..], stride);
    }
    let first = groups.len() * TOGETHER;
    for (i, sum) in rest.iter_mut().enumerate() {
        [*sum] = group::<T, P, 1, BYTES, N>(x, &w[(first + i) * stride..], stride);
    }
}

/// R rows at once; a row's bits do not depend on R.
#[inline(always)]
fn group<T: Products<BYTES, N>, P: Path, const R: usize, const BYTES: usize, const N: usize>(
    x: &[[Int8Block; N]],
    w: &[u8],
    stride: usize,
) -> [f32; R] {
    let mut rows: [&[[u8; BYTES]]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &w[r * stride..][..x.len() * BYTES].as_chunks().0[..x.len()];
    }
    let mut sums = [Sum::default(); R];
    for i in 0..x.len() {
        for r in 0..R {
            T::add::<P>(&mut sums[r], &rows[r][i], &x[i]);
        }
    }
    let mut totals = [0f32; R];
    for r in 0..R {
        totals[r] = total(&sums[r]);
    }
    totals
}

#[inline(always)]
fn total(sum: &Sum) -> f32 {
    let mut four = [0f32; LANES / 2];
    for i in 0..LANES / 2 {
        four[i] = sum.lanes[i] + sum.lanes[i + LANES / 2];
    }
    (four[0] + four[2]) + (four[1] + four[3]) + sum.minima
}
