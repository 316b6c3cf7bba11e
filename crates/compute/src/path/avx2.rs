//! The path for AVX2, FMA and F16C: four registers of 16 bytes. Zen 1 halves longer ones anyway.

use std::arch::x86_64::*;

use super::{Path, ROWS, intrinsics, rows};

/// For functions that are compiled for AVX2, FMA and F16C.
pub struct Avx2;

impl Path for Avx2 {
    type Bytes = [__m128i; ROWS];
    type Pairs = [__m128i; ROWS];
    type Fours = [__m128i; ROWS];
    type Floats = [__m128; ROWS];
    type Scales = __m128;

    intrinsics! {
        fn bytes(b: [&[u8; 16]; ROWS]) -> Self::Bytes { rows!(r => _mm_loadu_si128(b[r].as_ptr().cast())) }
        fn bits(b: Self::Bytes, shift: u8, mask: u8) -> Self::Bytes {
            // There is no shift of bytes: the mask clears what came from the byte above.
            let (shift, mask) = (_mm_cvtsi32_si128(i32::from(shift)), _mm_set1_epi8((mask & (0xff >> shift)) as i8));
            rows!(r => _mm_and_si128(_mm_srl_epi16(b[r], shift), mask))
        }
        fn join(a: Self::Bytes, b: Self::Bytes, shift: u8) -> Self::Bytes {
            let shift = _mm_cvtsi32_si128(i32::from(shift));
            rows!(r => _mm_or_si128(a[r], _mm_sll_epi16(b[r], shift)))
        }
        fn fifth(b: Self::Bytes, shift: u8, bits: [[u8; 2]; ROWS]) -> Self::Bytes {
            let order = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let bit = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let four = Self::bits(b, shift, 15);
            rows!(r => {
                let own = _mm_shuffle_epi8(_mm_set1_epi16(i16::from_le_bytes(bits[r])), order);
                let set = _mm_cmpeq_epi8(_mm_and_si128(own, bit), bit);
                _mm_or_si128(four[r], _mm_and_si128(set, _mm_set1_epi8(16)))
            })
        }
        fn look_up(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            rows!(r => _mm_shuffle_epi8(table, b[r]))
        }
        fn unsigned(w: [Self::Bytes; 2], x: &[[i8; 16]; 2]) -> Self::Fours {
            let [a, b] = [Self::pairs(w[0], &x[0]), Self::pairs(w[1], &x[1])];
            rows!(r => _mm_madd_epi16(_mm_add_epi16(a[r], b[r]), _mm_set1_epi16(1)))
        }
        fn signed(w: [Self::Bytes; 2], x: &[[i8; 16]; 2], _offsets: &[i32; 4]) -> Self::Fours {
            let [a, b] = [signed_pairs(w[0], &x[0]), signed_pairs(w[1], &x[1])];
            let one = _mm_set1_epi16(1);
            rows!(r => _mm_add_epi32(_mm_madd_epi16(a[r], one), _mm_madd_epi16(b[r], one)))
        }
        fn pairs(w: Self::Bytes, x: &[i8; 16]) -> Self::Pairs {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            rows!(r => _mm_maddubs_epi16(w[r], x))
        }
        fn widen(b: [[u8; 8]; ROWS]) -> Self::Pairs {
            rows!(r => _mm_cvtepi8_epi16(_mm_loadl_epi64(b[r].as_ptr().cast())))
        }
        fn load_pairs(x: &[[i16; 2]; 4]) -> Self::Pairs { [_mm_loadu_si128(x.as_ptr().cast()); ROWS] }
        fn repeat(a: Self::Pairs, i: usize) -> Self::Pairs {
            let low = 2 * i as i16;
            let order = _mm_set1_epi16(low | (low + 1) << 8);
            rows!(r => _mm_shuffle_epi8(a[r], order))
        }
        fn multiply(a: Self::Pairs, b: Self::Pairs) -> Self::Fours { rows!(r => _mm_madd_epi16(a[r], b[r])) }
        fn add_fours(a: Self::Fours, b: Self::Fours) -> Self::Fours { rows!(r => _mm_add_epi32(a[r], b[r])) }
        fn small(b: Self::Bytes, i: usize) -> Self::Floats {
            let order = _mm_add_epi8(_mm_set1_epi32(4 * i as i32), _mm_setr_epi32(!0xff, !0xfe, !0xfd, !0xfc));
            rows!(r => _mm_cvtepi32_ps(_mm_shuffle_epi8(b[r], order)))
        }
        fn floats(a: Self::Fours) -> Self::Floats { rows!(r => _mm_cvtepi32_ps(a[r])) }
        fn splat(x: f32) -> Self::Floats { [_mm_set1_ps(x); ROWS] }
        fn load(x: &[f32; 4]) -> Self::Floats { [_mm_loadu_ps(x.as_ptr()); ROWS] }
        fn lane(a: Self::Floats, i: usize) -> Self::Floats {
            rows!(r => _mm_permutevar_ps(a[r], _mm_set1_epi32(i as i32)))
        }
        fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats { rows!(r => _mm_mul_ps(a[r], b[r])) }
        fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            rows!(r => _mm_fmadd_ps(a[r], b[r], c[r]))
        }
        fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats { rows!(r => _mm_add_ps(a[r], b[r])) }
        fn totals(a: Self::Floats) -> __m128 {
            let [a, b, c, d] = a;
            let first = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let second = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            _mm_add_ps(_mm_movelh_ps(first, second), _mm_movehl_ps(second, first))
        }
        fn scales(bits: [&[u8; 2]; ROWS]) -> __m128 {
            let [a, b, c, d] = rows!(r => i16::from_le_bytes(*bits[r]));
            _mm_cvtph_ps(_mm_setr_epi16(a, b, c, d, 0, 0, 0, 0))
        }
        fn scale_pairs(bits: [&[u8; 4]; ROWS]) -> (__m128, __m128) {
            let [a, b, c, d] = rows!(r => i32::from_le_bytes(*bits[r]));
            let order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            let sorted = _mm_shuffle_epi8(_mm_setr_epi32(a, b, c, d), order);
            (_mm_cvtph_ps(sorted), _mm_cvtph_ps(_mm_unpackhi_epi64(sorted, sorted)))
        }
        fn no_scales() -> __m128 { _mm_setzero_ps() }
        fn mul_scales(a: __m128, x: f32) -> __m128 { _mm_mul_ps(a, _mm_set1_ps(x)) }
        fn mul_add_scales(a: __m128, x: f32, c: __m128) -> __m128 { _mm_fmadd_ps(a, _mm_set1_ps(x), c) }
        fn add_scales(a: __m128, b: __m128) -> __m128 { _mm_add_ps(a, b) }
        fn spread(a: __m128) -> Self::Floats { rows!(r => _mm_permutevar_ps(a, _mm_set1_epi32(r))) }
        fn store_scales(a: __m128) -> [f32; ROWS] {
            let mut x = [0.0; ROWS];
            _mm_storeu_ps(x.as_mut_ptr(), a);
            x
        }
        fn singles(b: [&[[u8; 4]; 8]; ROWS]) -> [Self::Floats; 2] {
            let at = |r: usize, i: usize| b[r][i..].as_ptr().cast();
            [rows!(r => _mm_loadu_ps(at(r, 0))), rows!(r => _mm_loadu_ps(at(r, 4)))]
        }
        fn halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2] {
            let at = |r: usize, i: usize| b[r][i..].as_ptr().cast();
            let four = [rows!(r => _mm_loadl_epi64(at(r, 0))), rows!(r => _mm_loadl_epi64(at(r, 4)))];
            [rows!(r => _mm_cvtph_ps(four[0][r])), rows!(r => _mm_cvtph_ps(four[1][r]))]
        }
        fn upper_halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2] {
            let (b, zero) = (rows!(r => _mm_loadu_si128(b[r].as_ptr().cast())), _mm_setzero_si128());
            [
                rows!(r => _mm_castsi128_ps(_mm_unpacklo_epi16(zero, b[r]))),
                rows!(r => _mm_castsi128_ps(_mm_unpackhi_epi16(zero, b[r]))),
            ]
        }
        fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Products of signed bytes, added in pairs.
#[inline(always)]
fn signed_pairs(w: [__m128i; ROWS], x: &[i8; 16]) -> [__m128i; ROWS] {
    // SAFETY: as in `intrinsics!`.
    unsafe {
        let x = _mm_loadu_si128(x.as_ptr().cast());
        // The sign of w goes over to x. A pair is at most 2 * 128 * 127, so nothing saturates.
        rows!(r => _mm_maddubs_epi16(_mm_abs_epi8(w[r]), _mm_sign_epi8(x, w[r])))
    }
}
