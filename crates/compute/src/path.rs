//! The vector operations that dot products over stored bytes are written in, without assumptions and for AVX2.
//!
//! Vectors have 16 bytes: a block of 32 is two of them, and Zen 1 halves wider ones anyway. Integers are exact on
//! every path, floats are multiplied and added as IEEE says, so the paths agree to the bit. Loops alone do not get
//! there: no compiler finds the instruction that multiplies bytes.
//!
//! Code over a path calls its methods in loops and `inline(always)` functions, not in closures, which cannot be forced
//! into the code of an instruction set.

/// What an instruction set offers. Methods, since only they can be forced into the code of their instruction set.
pub trait Path {
    /// 16 bytes.
    type Bytes: Copy;
    /// 8 integers of 16 bits.
    type Pairs: Copy;
    /// 4 integers of 32 bits.
    type Fours: Copy;
    /// 4 floats.
    type Floats: Copy;

    /// 16 stored bytes.
    fn bytes(b: &[u8; 16]) -> Self::Bytes;
    /// The bits of each byte from `shift` on that are in `mask`, at the lower end.
    fn bits(b: Self::Bytes, shift: u8, mask: u8) -> Self::Bytes;
    /// The lowest bits of each byte of b, moved up by `shift` and joined with a: `a | b << shift`. What would be
    /// moved out of a byte must be zero.
    fn join(a: Self::Bytes, b: Self::Bytes, shift: u8) -> Self::Bytes;
    /// Bit i of the two bytes as byte i: 0 or 1.
    fn spread(bits: [u8; 2]) -> Self::Bytes;
    /// The table's entry for each byte below 16.
    fn look_up(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes;
    /// Products of unsigned bytes with signed ones, added in pairs: no pair may leave 16 bits.
    fn pairs(w: Self::Bytes, x: &[i8; 16]) -> Self::Pairs;
    /// Products of signed bytes, added in pairs; x is never -128.
    fn signed_pairs(w: Self::Bytes, x: &[i8; 16]) -> Self::Pairs;
    /// Signed bytes as they are.
    fn widen(b: &[u8; 8]) -> Self::Pairs;
    /// Integers from memory.
    fn load_pairs(x: &[[i16; 2]; 4]) -> Self::Pairs;
    /// a + b.
    fn add_pairs(a: Self::Pairs, b: Self::Pairs) -> Self::Pairs;
    /// Element i in every place.
    fn repeat(a: Self::Pairs, i: usize) -> Self::Pairs;
    /// Products, added in pairs.
    fn multiply(a: Self::Pairs, b: Self::Pairs) -> Self::Fours;
    /// Four zeros.
    fn zero() -> Self::Fours;
    /// Neighbours added up.
    fn fours(a: Self::Pairs) -> Self::Fours;
    /// a + b.
    fn add_fours(a: Self::Fours, b: Self::Fours) -> Self::Fours;
    /// Four unsigned bytes as floats.
    fn small(b: [u8; 4]) -> Self::Floats;
    /// Integers below 2^24 as floats.
    fn floats(a: Self::Fours) -> Self::Floats;
    /// The same number four times.
    fn splat(x: f32) -> Self::Floats;
    /// Numbers from memory.
    fn load(x: &[f32; 4]) -> Self::Floats;
    /// Numbers to memory.
    fn store(a: Self::Floats) -> [f32; 4];
    /// Number i in every place.
    fn lane(a: Self::Floats, i: usize) -> Self::Floats;
    /// a b.
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a b + c, rounded once.
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// a + b.
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Four half-precision numbers from different places.
    fn scales(bits: [[u8; 2]; 4]) -> Self::Floats;
    /// A half-precision number.
    fn half(bits: [u8; 2]) -> f32;
    /// Four pairs of half-precision numbers from different places: the first of each, the second of each.
    fn scale_pairs(bits: [[u8; 4]; 4]) -> (Self::Floats, Self::Floats);
    /// Four stored singles.
    fn singles(b: &[[u8; 4]; 4]) -> Self::Floats;
    /// Four stored halves.
    fn halves(b: &[[u8; 2]; 4]) -> Self::Floats;
    /// Four stored upper halves of singles.
    fn upper_halves(b: &[[u8; 2]; 4]) -> Self::Floats;
    /// Tells the memory that this address will be read.
    fn prefetch(p: *const u8);
}

/// How far ahead of what is multiplied memory is told what comes: as much as arrives while it travels.
const AHEAD: usize = 4096;

/// Tells the memory of `bytes` bytes that come [`AHEAD`] of place `at`. Rows of weights that are multiplied side by
/// side are neighbours, so what they need next follows the first one's beginning, in steps as large as theirs together.
#[inline(always)]
pub fn prefetch<P: Path>(weights: &[u8], at: usize, bytes: usize) {
    let start = weights.as_ptr().wrapping_add(at + AHEAD);
    for line in (0..bytes).step_by(64) {
        P::prefetch(start.wrapping_add(line));
    }
}

/// Tells the memory of what [`prefetch`] comes too late for: the beginning.
#[inline(always)]
pub fn prefetch_first<P: Path>(weights: &[u8]) {
    for line in (0..AHEAD.min(weights.len())).step_by(64) {
        P::prefetch(weights.as_ptr().wrapping_add(line));
    }
}

/// The path without assumptions.
pub struct Plain;

impl Path for Plain {
    type Bytes = [u8; 16];
    type Pairs = [i16; 8];
    type Fours = [i32; 4];
    type Floats = [f32; 4];

    #[inline(always)]
    fn bytes(b: &[u8; 16]) -> [u8; 16] {
        *b
    }
    #[inline(always)]
    fn bits(b: [u8; 16], shift: u8, mask: u8) -> [u8; 16] {
        b.map(|b| b >> shift & mask)
    }
    #[inline(always)]
    fn join(a: [u8; 16], b: [u8; 16], shift: u8) -> [u8; 16] {
        std::array::from_fn(|i| a[i] | b[i] << shift)
    }
    #[inline(always)]
    fn spread(bits: [u8; 2]) -> [u8; 16] {
        std::array::from_fn(|i| bits[i / 8] >> (i % 8) & 1)
    }
    #[inline(always)]
    fn look_up(table: &[i8; 16], b: [u8; 16]) -> [u8; 16] {
        b.map(|b| table[usize::from(b & 15)] as u8)
    }
    #[inline(always)]
    fn pairs(w: [u8; 16], x: &[i8; 16]) -> [i16; 8] {
        std::array::from_fn(|i| {
            i16::from(w[2 * i]) * i16::from(x[2 * i]) + i16::from(w[2 * i + 1]) * i16::from(x[2 * i + 1])
        })
    }
    #[inline(always)]
    fn signed_pairs(w: [u8; 16], x: &[i8; 16]) -> [i16; 8] {
        let w = w.map(|w| i16::from(w as i8));
        std::array::from_fn(|i| w[2 * i] * i16::from(x[2 * i]) + w[2 * i + 1] * i16::from(x[2 * i + 1]))
    }
    #[inline(always)]
    fn widen(b: &[u8; 8]) -> [i16; 8] {
        b.map(|b| i16::from(b as i8))
    }
    #[inline(always)]
    fn load_pairs(x: &[[i16; 2]; 4]) -> [i16; 8] {
        std::array::from_fn(|i| x[i / 2][i % 2])
    }
    #[inline(always)]
    fn add_pairs(a: [i16; 8], b: [i16; 8]) -> [i16; 8] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn repeat(a: [i16; 8], i: usize) -> [i16; 8] {
        [a[i]; 8]
    }
    #[inline(always)]
    fn multiply(a: [i16; 8], b: [i16; 8]) -> [i32; 4] {
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        std::array::from_fn(|i| product(2 * i) + product(2 * i + 1))
    }
    #[inline(always)]
    fn zero() -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    fn fours(a: [i16; 8]) -> [i32; 4] {
        Self::multiply(a, [1; 8])
    }
    #[inline(always)]
    fn add_fours(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn small(b: [u8; 4]) -> [f32; 4] {
        b.map(f32::from)
    }
    #[inline(always)]
    fn floats(a: [i32; 4]) -> [f32; 4] {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    fn load(x: &[f32; 4]) -> [f32; 4] {
        *x
    }
    #[inline(always)]
    fn store(a: [f32; 4]) -> [f32; 4] {
        a
    }
    #[inline(always)]
    fn lane(a: [f32; 4], i: usize) -> [f32; 4] {
        [a[i]; 4]
    }
    #[inline(always)]
    fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn scales(bits: [[u8; 2]; 4]) -> [f32; 4] {
        Self::halves(&bits)
    }
    #[inline(always)]
    fn half(bits: [u8; 2]) -> f32 {
        crate::quant::half_to_f32(u16::from_le_bytes(bits))
    }
    #[inline(always)]
    fn scale_pairs(bits: [[u8; 4]; 4]) -> ([f32; 4], [f32; 4]) {
        (Self::scales(bits.map(|b| [b[0], b[1]])), Self::scales(bits.map(|b| [b[2], b[3]])))
    }
    #[inline(always)]
    fn singles(b: &[[u8; 4]; 4]) -> [f32; 4] {
        b.map(f32::from_le_bytes)
    }
    #[inline(always)]
    fn halves(b: &[[u8; 2]; 4]) -> [f32; 4] {
        b.map(|b| crate::quant::half_to_f32(u16::from_le_bytes(b)))
    }
    #[inline(always)]
    fn upper_halves(b: &[[u8; 2]; 4]) -> [f32; 4] {
        b.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
    }
    #[inline(always)]
    fn prefetch(_: *const u8) {}
}

/// The methods of a path as calls of intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the path is taken only where the machine has AVX2, FMA and F16C; loads and stores are of whole
            // arrays and need no alignment; a prefetch reads nothing.
            unsafe { $body }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
pub mod avx2 {
    use std::arch::x86_64::*;

    use super::Path;

    /// For functions that are compiled for AVX2, FMA and F16C.
    pub struct Avx2;

    impl Path for Avx2 {
        type Bytes = __m128i;
        type Pairs = __m128i;
        type Fours = __m128i;
        type Floats = __m128;

        intrinsics! {
            fn bytes(b: &[u8; 16]) -> __m128i { _mm_loadu_si128(b.as_ptr().cast()) }
            fn bits(b: __m128i, shift: u8, mask: u8) -> __m128i {
                // There is no shift of bytes: the mask clears what came from the byte above.
                let shifted = _mm_srl_epi16(b, _mm_cvtsi32_si128(i32::from(shift)));
                _mm_and_si128(shifted, _mm_set1_epi8((mask & (0xff >> shift)) as i8))
            }
            fn join(a: __m128i, b: __m128i, shift: u8) -> __m128i {
                _mm_or_si128(a, _mm_sll_epi16(b, _mm_cvtsi32_si128(i32::from(shift))))
            }
            fn spread(bits: [u8; 2]) -> __m128i {
                let both = _mm_set1_epi16(i16::from_le_bytes(bits));
                let own = _mm_shuffle_epi8(both, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
                let bit = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let set = _mm_cmpeq_epi8(_mm_and_si128(own, bit), bit);
                _mm_and_si128(set, _mm_set1_epi8(1))
            }
            fn look_up(table: &[i8; 16], b: __m128i) -> __m128i {
                _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), b)
            }
            fn pairs(w: __m128i, x: &[i8; 16]) -> __m128i {
                _mm_maddubs_epi16(w, _mm_loadu_si128(x.as_ptr().cast()))
            }
            fn signed_pairs(w: __m128i, x: &[i8; 16]) -> __m128i {
                // The sign of w goes over to x. A pair is at most 2 * 128 * 127, so nothing saturates.
                _mm_maddubs_epi16(_mm_abs_epi8(w), _mm_sign_epi8(_mm_loadu_si128(x.as_ptr().cast()), w))
            }
            fn widen(b: &[u8; 8]) -> __m128i { _mm_cvtepi8_epi16(_mm_loadl_epi64(b.as_ptr().cast())) }
            fn load_pairs(x: &[[i16; 2]; 4]) -> __m128i { _mm_loadu_si128(x.as_ptr().cast()) }
            fn add_pairs(a: __m128i, b: __m128i) -> __m128i { _mm_add_epi16(a, b) }
            fn repeat(a: __m128i, i: usize) -> __m128i {
                let low = 2 * i as i16;
                _mm_shuffle_epi8(a, _mm_set1_epi16(low | (low + 1) << 8))
            }
            fn multiply(a: __m128i, b: __m128i) -> __m128i { _mm_madd_epi16(a, b) }
            fn zero() -> __m128i { _mm_setzero_si128() }
            fn fours(a: __m128i) -> __m128i { _mm_madd_epi16(a, _mm_set1_epi16(1)) }
            fn add_fours(a: __m128i, b: __m128i) -> __m128i { _mm_add_epi32(a, b) }
            fn small(b: [u8; 4]) -> __m128 {
                _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(b))))
            }
            fn floats(a: __m128i) -> __m128 { _mm_cvtepi32_ps(a) }
            fn splat(x: f32) -> __m128 { _mm_set1_ps(x) }
            fn load(x: &[f32; 4]) -> __m128 { _mm_loadu_ps(x.as_ptr()) }
            fn store(a: __m128) -> [f32; 4] {
                let mut x = [0.0; 4];
                _mm_storeu_ps(x.as_mut_ptr(), a);
                x
            }
            fn lane(a: __m128, i: usize) -> __m128 { _mm_permutevar_ps(a, _mm_set1_epi32(i as i32)) }
            fn mul(a: __m128, b: __m128) -> __m128 { _mm_mul_ps(a, b) }
            fn mul_add(a: __m128, b: __m128, c: __m128) -> __m128 { _mm_fmadd_ps(a, b, c) }
            fn add(a: __m128, b: __m128) -> __m128 { _mm_add_ps(a, b) }
            fn scales(bits: [[u8; 2]; 4]) -> __m128 {
                let [a, b, c, d] = bits.map(i16::from_le_bytes);
                _mm_cvtph_ps(_mm_setr_epi16(a, b, c, d, 0, 0, 0, 0))
            }
            fn half(bits: [u8; 2]) -> f32 {
                _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bits)))))
            }
            fn scale_pairs(bits: [[u8; 4]; 4]) -> (__m128, __m128) {
                let [a, b, c, d] = bits.map(i32::from_le_bytes);
                let order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
                let sorted = _mm_shuffle_epi8(_mm_setr_epi32(a, b, c, d), order);
                (_mm_cvtph_ps(sorted), _mm_cvtph_ps(_mm_unpackhi_epi64(sorted, sorted)))
            }
            fn singles(b: &[[u8; 4]; 4]) -> __m128 { _mm_loadu_ps(b.as_ptr().cast()) }
            fn halves(b: &[[u8; 2]; 4]) -> __m128 { _mm_cvtph_ps(_mm_loadl_epi64(b.as_ptr().cast())) }
            fn upper_halves(b: &[[u8; 2]; 4]) -> __m128 {
                let wide = _mm_cvtepu16_epi32(_mm_loadl_epi64(b.as_ptr().cast()));
                _mm_castsi128_ps(_mm_slli_epi32::<16>(wide))
            }
            fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
    }
}
