//! The path for AVX-512 with VNNI: one register of four times 16 bytes.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::{Path, ROWS, intrinsics, rows};

/// For functions that are compiled for AVX-512 F, BW, DQ, VL and VNNI, and for all of [`Avx2`].
pub struct Avx512;

impl Path for Avx512 {
    type Bytes = __m512i;
    type Pairs = __m512i;
    type Fours = __m512i;
    type Floats = __m512;
    type Scales = __m128;

    intrinsics! {
        fn bytes(b: [&[u8; 16]; ROWS]) -> __m512i {
            let [a, b, c, d] = rows!(r => _mm_loadu_si128(b[r].as_ptr().cast()));
            let three = _mm512_inserti32x4::<2>(_mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b), c);
            _mm512_inserti32x4::<3>(three, d)
        }
        fn bits(b: __m512i, shift: u8, mask: u8) -> __m512i {
            // There is no shift of bytes: the mask clears what came from the byte above.
            let shifted = _mm512_srl_epi16(b, _mm_cvtsi32_si128(i32::from(shift)));
            _mm512_and_si512(shifted, _mm512_set1_epi8((mask & (0xff >> shift)) as i8))
        }
        fn join(a: __m512i, b: __m512i, shift: u8) -> __m512i {
            _mm512_or_si512(a, _mm512_sll_epi16(b, _mm_cvtsi32_si128(i32::from(shift))))
        }
        fn fifth(b: __m512i, shift: u8, bits: [[u8; 2]; ROWS]) -> __m512i {
            let [w, x, y, z] = rows!(r => u64::from(u16::from_le_bytes(bits[r])));
            let fifth = _mm512_maskz_set1_epi8(w | x << 16 | (y | z << 16) << 32, 16);
            let shifted = _mm512_srl_epi16(b, _mm_cvtsi32_si128(i32::from(shift)));
            // Shifted and 15, or the fifth.
            _mm512_ternarylogic_epi32::<0b1110_1010>(shifted, _mm512_set1_epi8(15), fifth)
        }
        fn look_up(table: &[i8; 16], b: __m512i) -> __m512i { _mm512_shuffle_epi8(everywhere(table), b) }
        fn unsigned(w: [__m512i; 2], x: &[[i8; 16]; 2]) -> __m512i {
            let zero = _mm512_setzero_si512();
            let first = _mm512_dpbusd_epi32(zero, w[0], everywhere(&x[0]));
            _mm512_dpbusd_epi32(first, w[1], everywhere(&x[1]))
        }
        fn signed(w: [__m512i; 2], x: &[[i8; 16]; 2], offsets: &[i32; 4]) -> __m512i {
            // w + 128 is unsigned.
            let top = _mm512_set1_epi8(-128);
            let first = _mm512_dpbusd_epi32(everywhere(offsets), _mm512_xor_si512(w[0], top), everywhere(&x[0]));
            _mm512_dpbusd_epi32(first, _mm512_xor_si512(w[1], top), everywhere(&x[1]))
        }
        fn pairs(w: __m512i, x: &[i8; 16]) -> __m512i { _mm512_maddubs_epi16(w, everywhere(x)) }
        fn widen(b: [[u8; 8]; ROWS]) -> __m512i {
            let [a, b, c, d] = rows!(r => i64::from_le_bytes(b[r]));
            _mm512_cvtepi8_epi16(_mm256_setr_epi64x(a, b, c, d))
        }
        fn repeat(a: __m512i, i: usize) -> __m512i {
            let low = 2 * i as i16;
            _mm512_shuffle_epi8(a, _mm512_set1_epi16(low | (low + 1) << 8))
        }
        fn multiply(a: __m512i, b: __m512i) -> __m512i { _mm512_madd_epi16(a, b) }
        fn add_fours(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn small(b: __m512i, i: usize) -> __m512 {
            let order = _mm_add_epi8(_mm_set1_epi32(4 * i as i32), _mm_setr_epi32(!0xff, !0xfe, !0xfd, !0xfc));
            _mm512_cvtepi32_ps(_mm512_shuffle_epi8(b, _mm512_broadcast_i32x4(order)))
        }
        fn floats(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(x: &[f32; 4]) -> __m512 { _mm512_castsi512_ps(everywhere(x)) }
        fn lane(a: __m512, i: usize) -> __m512 { _mm512_permutevar_ps(a, _mm512_set1_epi32(i as i32)) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn totals(a: __m512) -> __m128 {
            // a + c and b + d where a and b were, then their sum at each row's beginning.
            let two = _mm512_add_ps(a, _mm512_permute_ps::<0b10_11_10>(a));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<1>(two));
            let order = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
            _mm512_castps512_ps128(_mm512_permutexvar_ps(order, one))
        }
        fn scales(bits: [&[u8; 2]; ROWS]) -> __m128 {
            // Joined where the vectors' ports are not needed.
            let [a, b, c, d] = rows!(r => i64::from(u16::from_le_bytes(*bits[r])));
            _mm_cvtph_ps(_mm_cvtsi64_si128(a | b << 16 | (c | d << 16) << 32))
        }
        fn spread(a: __m128) -> __m512 {
            let order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(order, _mm512_castps128_ps512(a))
        }
        fn singles(b: [&[[u8; 4]; 8]; ROWS]) -> [__m512; 2] {
            let b = rows!(r => b[r].as_flattened().as_chunks().0);
            let four = [Self::bytes(rows!(r => &b[r][0])), Self::bytes(rows!(r => &b[r][1]))];
            [_mm512_castsi512_ps(four[0]), _mm512_castsi512_ps(four[1])]
        }
        fn halves(b: [&[[u8; 2]; 8]; ROWS]) -> [__m512; 2] {
            let b = stored(b);
            let first = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), b);
            let second = _mm512_extracti64x4_epi64::<1>(first);
            [_mm512_cvtph_ps(_mm512_castsi512_si256(first)), _mm512_cvtph_ps(second)]
        }
        fn upper_halves(b: [&[[u8; 2]; 8]; ROWS]) -> [__m512; 2] {
            let (b, zero) = (stored(b), _mm512_setzero_si512());
            let (first, second) = (_mm512_unpacklo_epi16(zero, b), _mm512_unpackhi_epi16(zero, b));
            [_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)]
        }
    }

    #[inline(always)]
    fn load_pairs(x: &[[i16; 2]; 4]) -> __m512i {
        everywhere(x)
    }

    #[inline(always)]
    fn scale_pairs(bits: [&[u8; 4]; ROWS]) -> (__m128, __m128) {
        Avx2::scale_pairs(bits)
    }

    #[inline(always)]
    fn no_scales() -> __m128 {
        Avx2::no_scales()
    }

    #[inline(always)]
    fn mul_scales(a: __m128, x: f32) -> __m128 {
        Avx2::mul_scales(a, x)
    }

    #[inline(always)]
    fn mul_add_scales(a: __m128, x: f32, c: __m128) -> __m128 {
        Avx2::mul_add_scales(a, x, c)
    }

    #[inline(always)]
    fn add_scales(a: __m128, b: __m128) -> __m128 {
        Avx2::add_scales(a, b)
    }

    #[inline(always)]
    fn store_scales(a: __m128) -> [f32; ROWS] {
        Avx2::store_scales(a)
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        Avx2::prefetch(p)
    }
}

/// The same 16 bytes in every row.
#[inline(always)]
fn everywhere<T, const N: usize>(x: &[T; N]) -> __m512i {
    const { assert!(size_of::<[T; N]>() == 16, "a row") };
    // SAFETY: as in `intrinsics!`.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())) }
}

/// Eight numbers of two bytes of each row.
#[inline(always)]
fn stored(b: [&[[u8; 2]; 8]; ROWS]) -> __m512i {
    Avx512::bytes(rows!(r => b[r].as_flattened().first_chunk().expect("16 bytes")))
}
