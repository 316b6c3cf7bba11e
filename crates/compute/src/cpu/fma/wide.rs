//! Tiles of AVX-512: sums stay in registers until they are written, the last rows and columns under masks.
//!
//! Plain loops compute the same bits; but the compiler takes all sums of a tile through memory, which costs a quarter of the
//! time of a product with a short k.

use std::arch::x86_64::*;

use super::{LANES, Rectangle, Side};
use crate::call::Store;

/// A tile of words that are values.
///
/// # Safety
/// The panels have `words` words, nobody else writes the rectangle, and the machine has AVX-512.
#[inline(always)]
pub unsafe fn floats<const V: usize, const M: usize>(
    words: usize,
    a: Side,
    b: Side,
    c: Rectangle,
    scale: f32,
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = sums::<Floats, V, M>(words, a, b);
        write(c, &sums, scale, store);
    }
}

/// A tile of words that are pairs of bf16.
///
/// # Safety
/// As [`floats`], and the machine has AVX512-BF16.
#[inline(always)]
pub unsafe fn pairs<const V: usize, const M: usize>(
    words: usize,
    a: Side,
    b: Side,
    c: Rectangle,
    scale: f32,
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = sums::<Pairs, V, M>(words, a, b);
        write(c, &sums, scale, store);
    }
}

/// A tile of blocks of integers, each [`BLOCK`] words of two and a word of scales: the products of a block are added in
/// integers (`vpdpwssd`), so exactly, blocks as floats.
///
/// # Safety
/// As [`floats`] with whole blocks, and the machine has AVX512-VNNI.
#[inline(always)]
pub unsafe fn integers<const V: usize, const M: usize>(
    words: usize,
    a: Side,
    b: Side,
    c: Rectangle,
    scale: f32,
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; M];
        let (mut a_p, mut b_p) = (a.p, b.p);
        for _ in 0..words / (BLOCK + 1) {
            let mut block = [[_mm512_setzero_si512(); V]; M];
            for _ in 0..BLOCK {
                let row: [__m512i; V] = vectors(b_p);
                for i in 0..M {
                    let x = _mm512_set1_epi32(a_p.add(i * a.outer).cast::<i32>().read());
                    for v in 0..V {
                        multiply_add(&mut block[i][v], x, row[v]);
                    }
                }
                (a_p, b_p) = (a_p.add(a.k), b_p.add(b.k));
            }
            let scales: [__m512; V] = vectors(b_p);
            for i in 0..M {
                let x = _mm512_set1_ps(*a_p.add(i * a.outer));
                for v in 0..V {
                    let whole = _mm512_cvtepi32_ps(block[i][v]);
                    sums[i][v] = _mm512_fmadd_ps(whole, _mm512_mul_ps(x, scales[v]), sums[i][v]);
                }
            }
            (a_p, b_p) = (a_p.wrapping_add(a.k), b_p.wrapping_add(b.k));
        }
        write(c, &sums, scale, store);
    }
}

/// `vpdpwssd`: 16 sums of two products of 16-bit integers each. In assembly, since the compiler makes a multiplication and
/// an addition of the intrinsic, for a latency that does not matter here.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_add(sum: &mut __m512i, x: __m512i, y: __m512i) {
    // SAFETY: nothing but registers is touched.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sum}, {x}, {y}",
            sum = inout(zmm_reg) *sum,
            x = in(zmm_reg) x,
            y = in(zmm_reg) y,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Words of a block of integers without its scale.
const BLOCK: usize = 16;

/// V vectors of whatever type from memory.
#[inline(always)]
unsafe fn vectors<T: Copy, const V: usize>(p: *const f32) -> [T; V] {
    // SAFETY: the caller's promise that there are V vectors of 64 bytes.
    unsafe { p.cast::<[T; V]>().read_unaligned() }
}

/// What a word is multiplied as.
trait Word {
    /// a b + c.
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512;
}

struct Floats;

impl Word for Floats {
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the tiles' callers promise AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}

struct Pairs;

impl Word for Pairs {
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the callers promise AVX512-BF16; a vector of words is one of pairs.
        unsafe {
            let pairs = |words| std::mem::transmute::<__m512, __m512bh>(words);
            _mm512_dpbf16_ps(c, pairs(a), pairs(b))
        }
    }
}

#[inline(always)]
unsafe fn sums<W: Word, const V: usize, const M: usize>(words: usize, a: Side, b: Side) -> [[__m512; V]; M] {
    // SAFETY: the instructions and the words are there by the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; M];
        let (mut a_p, mut b_p) = (a.p, b.p);
        for _ in 0..words {
            let mut row = [_mm512_setzero_ps(); V];
            for v in 0..V {
                row[v] = _mm512_loadu_ps(b_p.add(v * LANES));
                // A panel of b is as large as the first cache.
                _mm_prefetch::<_MM_HINT_T0>(b_p.wrapping_add(8 * b.k + v * LANES).cast());
            }
            for i in 0..M {
                let x = _mm512_set1_ps(*a_p.add(i * a.outer));
                for v in 0..V {
                    sums[i][v] = W::mul_add(x, row[v], sums[i][v]);
                }
            }
            (a_p, b_p) = (a_p.wrapping_add(a.k), b_p.wrapping_add(b.k));
        }
        sums
    }
}

#[inline(always)]
unsafe fn write<const V: usize, const M: usize>(
    c: Rectangle,
    sums: &[[__m512; V]; M],
    scale: f32,
    store: Store,
) {
    if c.col != 1 {
        // SAFETY: the caller's promise; a vector is an array of its lanes.
        return unsafe { c.write::<V, M>(&std::mem::transmute_copy(sums), scale, store) };
    }
    // SAFETY: masked lanes are neither read nor written, the others lie in the rectangle.
    unsafe {
        let scale = _mm512_set1_ps(scale);
        for i in 0..M {
            if i >= c.m {
                break;
            }
            for v in 0..V {
                let lanes = c.n.saturating_sub(v * LANES).min(LANES);
                let mask = ((1u32 << lanes) - 1) as __mmask16;
                let p = c.p.wrapping_add(i * c.row + v * LANES);
                let sum = _mm512_mul_ps(scale, sums[i][v]);
                let sum = match store {
                    Store::Replace => sum,
                    Store::Accumulate => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, p), sum),
                };
                _mm512_mask_storeu_ps(p, mask, sum);
            }
        }
    }
}
