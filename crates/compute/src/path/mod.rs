//! The vector operations that dot products over stored bytes are written in, without assumptions, for AVX2 and for
//! AVX-512.
//!
//! A vector has four rows of 16 bytes: a part of each of the stored rows that are multiplied side by side. AVX-512
//! keeps it in one register, AVX2 in four. No operation leaves its row. Integers are exact on every path, floats are
//! multiplied and added as IEEE says, so the paths agree to the bit. Loops alone do not get there: no compiler finds the
//! instructions that multiply bytes.
//!
//! Code over a path calls its methods in loops and `inline(always)` functions, not in closures, which cannot be forced
//! into the code of an instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use crate::isa::Isa;

/// Stored rows that are multiplied side by side: they fill a vector, their chains of additions overlap.
pub const ROWS: usize = 4;

/// What an instruction set offers. Methods, since only they can be forced into the code of their instruction set.
pub trait Path {
    /// 16 bytes a row.
    type Bytes: Copy;
    /// 8 integers of 16 bits a row.
    type Pairs: Copy;
    /// 4 integers of 32 bits a row.
    type Fours: Copy;
    /// 4 floats a row.
    type Floats: Copy;
    /// One float a row.
    type Scales: Copy;

    /// 16 stored bytes of each row.
    fn bytes(b: [&[u8; 16]; ROWS]) -> Self::Bytes;
    /// The bits of each byte from `shift` on that are in `mask`, at the lower end.
    fn bits(b: Self::Bytes, shift: u8, mask: u8) -> Self::Bytes;
    /// The lowest bits of each byte of b, moved up by `shift` and joined with a: `a | b << shift`. What would be
    /// moved out of a byte must be zero.
    fn join(a: Self::Bytes, b: Self::Bytes, shift: u8) -> Self::Bytes;
    /// The four bits of each byte from `shift` on, and bit i of a row's two bytes as the fifth of its byte i.
    fn fifth(b: Self::Bytes, shift: u8, bits: [[u8; 2]; ROWS]) -> Self::Bytes;
    /// The table's entry for each byte below 16.
    fn look_up(table: &[i8; 16], b: Self::Bytes) -> Self::Bytes;
    /// Products of 32 unsigned bytes a row, 16 and 16 of them, with signed ones, eight of them added. At most 63 each,
    /// so that two pairs fit into 16 bits.
    fn unsigned(w: [Self::Bytes; 2], x: &[[i8; 16]; 2]) -> Self::Fours;
    /// Products of 32 signed bytes a row with signed ones, eight of them added; x is never -128. `offsets` are -128 times
    /// the sums of the same eight of x, for those who multiply w + 128.
    fn signed(w: [Self::Bytes; 2], x: &[[i8; 16]; 2], offsets: &[i32; 4]) -> Self::Fours;
    /// Products of unsigned bytes with signed ones, added in pairs: no pair may leave 16 bits.
    fn pairs(w: Self::Bytes, x: &[i8; 16]) -> Self::Pairs;
    /// Signed bytes as they are.
    fn widen(b: [[u8; 8]; ROWS]) -> Self::Pairs;
    /// The same integers in every row.
    fn load_pairs(x: &[[i16; 2]; 4]) -> Self::Pairs;
    /// A row's element i in all its places.
    fn repeat(a: Self::Pairs, i: usize) -> Self::Pairs;
    /// Products, added in pairs.
    fn multiply(a: Self::Pairs, b: Self::Pairs) -> Self::Fours;
    /// a + b.
    fn add_fours(a: Self::Fours, b: Self::Fours) -> Self::Fours;
    /// A row's unsigned bytes 4i to 4i + 3 as floats.
    fn small(b: Self::Bytes, i: usize) -> Self::Floats;
    /// Integers below 2^24 as floats.
    fn floats(a: Self::Fours) -> Self::Floats;
    /// The same number everywhere.
    fn splat(x: f32) -> Self::Floats;
    /// The same numbers in every row.
    fn load(x: &[f32; 4]) -> Self::Floats;
    /// A row's number i in all its places.
    fn lane(a: Self::Floats, i: usize) -> Self::Floats;
    /// a b.
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a b + c, rounded once.
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// a + b.
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// (a + c) + (b + d) of each row's a, b, c, d.
    fn totals(a: Self::Floats) -> Self::Scales;
    /// A half-precision number of each row.
    fn scales(bits: [&[u8; 2]; ROWS]) -> Self::Scales;
    /// Two half-precision numbers of each row: the first of each, the second of each.
    fn scale_pairs(bits: [&[u8; 4]; ROWS]) -> (Self::Scales, Self::Scales);
    /// Zeros.
    fn no_scales() -> Self::Scales;
    /// a x.
    fn mul_scales(a: Self::Scales, x: f32) -> Self::Scales;
    /// a x + c, rounded once.
    fn mul_add_scales(a: Self::Scales, x: f32, c: Self::Scales) -> Self::Scales;
    /// a + b.
    fn add_scales(a: Self::Scales, b: Self::Scales) -> Self::Scales;
    /// A row's number in all its places.
    fn spread(a: Self::Scales) -> Self::Floats;
    /// Numbers to memory.
    fn store_scales(a: Self::Scales) -> [f32; ROWS];
    /// Eight stored singles of each row, four and four of them.
    fn singles(b: [&[[u8; 4]; 8]; ROWS]) -> [Self::Floats; 2];
    /// Eight stored halves of each row.
    fn halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2];
    /// Eight stored upper halves of singles of each row.
    fn upper_halves(b: [&[[u8; 2]; 8]; ROWS]) -> [Self::Floats; 2];
    /// Tells the memory that this address will be read.
    fn prefetch(p: *const u8);
}

/// A computation that is written over a path.
pub trait Work {
    /// All of it. To be forced into the caller, which is compiled for the path.
    fn run<P: Path>(self);
}

/// Does it on the path of an instruction set.
pub fn run<W: Work>(isa: Isa, work: W) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn on_avx2<W: Work>(work: W) {
        work.run::<avx2::Avx2>();
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn on_avx512<W: Work>(work: W) {
        work.run::<avx512::Avx512>();
    }
    match isa {
        // SAFETY: a backend with this path exists only where the machine has these features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { on_avx512(work) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { on_avx2(work) },
        _ => work.run::<plain::Plain>(),
    }
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

/// A value for each row. A list and no loop, so that it never reaches memory.
macro_rules! rows {
    ($r:ident => $value:expr) => {
        [
            {
                let $r = 0;
                $value
            },
            {
                let $r = 1;
                $value
            },
            {
                let $r = 2;
                $value
            },
            {
                let $r = 3;
                $value
            },
        ]
    };
}
pub(crate) use rows;

/// The methods of a path as calls of intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the path is taken only where the machine has its instructions; loads and stores are of whole
            // arrays and need no alignment; a prefetch reads nothing.
            unsafe { $body }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
use intrinsics;
