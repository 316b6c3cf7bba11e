//! Micro-kernels: a panel of MR rows times a panel of NR columns, one fused multiply-add chain over k for each element.
//!
//! A kernel is one [`kernel!`]: its tile, the format of its packed operands, the instructions it is compiled for. A
//! tile fills most vector registers with sums and leaves room for a row of b and one element of a.

#[cfg(target_arch = "x86_64")]
use super::format::{Bf16Pairs, Integers};
use super::format::{F32, Format, RoundedToBf16, RoundedToIntegers};
use crate::call::Store;
use crate::cpu::fma::{self, LANES, Rectangle, Side};

/// Where the panels of one side of a block lie: packed one after the other, or in the matrix itself.
#[derive(Clone, Copy)]
pub struct Panels {
    /// The first one; its elements are words.
    pub first: Side,
    /// Words from one panel to the next.
    pub panel: usize,
}

/// How a product is computed: tile, format of the packed operands, instructions.
pub trait Kernel {
    /// Rows of a tile.
    const MR: usize;
    /// Columns of a tile.
    const NR: usize;
    /// What the words of packed operands are.
    type Format: Format;

    /// c (+)= scale * a b' over `words` words of k, for packed columns b.
    ///
    /// # Safety
    /// The machine has the kernel's instructions; the panels that the rectangle touches are readable, and the
    /// rectangle is written by nobody else.
    unsafe fn block(words: usize, a: Panels, b: Panels, c: Rectangle, scale: f32, store: Store);
}

/// Defines a kernel: name, tile, format, the function that computes and writes a tile, the instructions.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident: $mr:literal x $nr:literal, $format:ty, $($tile:ident)::+ $(, $features:literal)?) => {
        $(#[$doc])*
        pub struct $name;

        impl Kernel for $name {
            const MR: usize = $mr;
            const NR: usize = $nr;
            type Format = $format;

            unsafe fn block(words: usize, a: Panels, b: Panels, c: Rectangle, scale: f32, store: Store) {
                $(#[target_feature(enable = $features)])?
                unsafe fn compiled(words: usize, a: Panels, b: Panels, c: Rectangle, scale: f32, store: Store) {
                    for j in 0..c.n.div_ceil($nr) {
                        for i in 0..c.m.div_ceil($mr) {
                            // SAFETY: the caller's promise about panels and rectangle.
                            unsafe {
                                let c = c.tile(i * $mr, j * $nr, $mr, $nr);
                                c.prefetch();
                                $($tile)::+::<{ $nr / LANES }, $mr>(words, a.at(i), b.at(j), c, scale, store);
                            }
                        }
                    }
                }
                // SAFETY: the caller's promise.
                unsafe { compiled(words, a, b, c, scale, store) }
            }
        }
    };
}

kernel! {
    /// Plain code. With NEON twenty-four of thirty-two registers hold sums.
    Plain: 6 x 16, F32, fma::plain
}
kernel! {
    /// Plain code on values rounded to bf16.
    PlainRounded: 6 x 16, RoundedToBf16, fma::plain
}
kernel! {
    /// Plain code on blocks of integers.
    PlainIntegers: 6 x 16, RoundedToIntegers, fma::plain
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// Twelve of sixteen registers hold sums.
    Avx2: 6 x 16, F32, fma::plain, "avx2,fma"
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// The same on values rounded to bf16.
    Avx2Rounded: 6 x 16, RoundedToBf16, fma::plain, "avx2,fma"
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// Twenty-four of thirty-two registers hold sums.
    Avx512: 8 x 48, F32, fma::wide::floats, "avx512f,avx512bw,avx512dq,avx512vl,fma"
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// For up to sixteen columns: the thin products of low-rank adapters.
    Avx512Thin: 14 x 16, F32, fma::wide::floats, "avx512f,avx512bw,avx512dq,avx512vl,fma"
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// The large tile on values rounded to bf16, for machines that do not multiply bf16 faster than f32.
    Avx512Rounded: 8 x 48, RoundedToBf16, fma::wide::floats, "avx512f,avx512bw,avx512dq,avx512vl,fma"
}
#[cfg(target_arch = "x86_64")]
kernel! {
    /// Pairs of bf16, products and sums in f32 (`vdpbf16ps`).
    Avx512Bf16: 8 x 48, Bf16Pairs, fma::wide::pairs, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"
}

#[cfg(target_arch = "x86_64")]
kernel! {
    /// Integers in blocks: twelve registers hold their sums, twelve those of blocks.
    Avx512Integers: 6 x 32, Integers, fma::wide::integers, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma"
}

impl Panels {
    /// Panel `i`.
    ///
    /// # Safety
    /// There is a panel `i`.
    #[inline(always)]
    unsafe fn at(self, i: usize) -> Side {
        // SAFETY: the caller's promise.
        Side { p: unsafe { self.first.p.add(i * self.panel) }, ..self.first }
    }
}
