//! What packed operands are made of: words of 32 bits, each one k or a pair of them.

use crate::isa::{Isa, isa_fn};

/// How values of an operand become words. `decode` writes values; where words are values it writes them in place.
pub trait Format {
    /// Values of k in a word.
    const PAIR: usize;
    /// Whether words are the values themselves, so that an operand of f32 need not be packed.
    const PLAIN: bool;

    /// The words of consecutive k of one row, as many as there is room for in `values`. An odd last k is paired with 0.
    fn along(isa: Isa, decode: impl FnOnce(&mut [f32]), values: &mut [f32], words: &mut [f32]);

    /// The words of consecutive rows at one k or two: `decode(i, ..)` writes their values at the i-th of them.
    fn across(isa: Isa, decode: impl Fn(usize, &mut [f32]), values: [&mut [f32]; 2], words: &mut [f32]);
}

/// The values themselves.
pub struct F32;

impl Format for F32 {
    const PAIR: usize = 1;
    const PLAIN: bool = true;

    fn along(_: Isa, decode: impl FnOnce(&mut [f32]), _: &mut [f32], words: &mut [f32]) {
        decode(words);
    }

    fn across(_: Isa, decode: impl Fn(usize, &mut [f32]), _: [&mut [f32]; 2], words: &mut [f32]) {
        decode(0, words);
    }
}

/// Values rounded to bf16, as f32: for machines that cannot multiply bf16.
pub struct RoundedToBf16;

impl Format for RoundedToBf16 {
    const PAIR: usize = 1;
    const PLAIN: bool = false;

    fn along(isa: Isa, decode: impl FnOnce(&mut [f32]), _: &mut [f32], words: &mut [f32]) {
        decode(words);
        round(isa, words);
    }

    fn across(isa: Isa, decode: impl Fn(usize, &mut [f32]), _: [&mut [f32]; 2], words: &mut [f32]) {
        decode(0, words);
        round(isa, words);
    }
}

/// Two bf16, the first k in the low half: words of `vdpbf16ps`.
#[cfg(target_arch = "x86_64")]
pub struct Bf16Pairs;

#[cfg(target_arch = "x86_64")]
impl Format for Bf16Pairs {
    const PAIR: usize = 2;
    const PLAIN: bool = false;

    fn along(isa: Isa, decode: impl FnOnce(&mut [f32]), values: &mut [f32], words: &mut [f32]) {
        decode(values);
        pair_neighbours(isa, values, words);
    }

    fn across(isa: Isa, decode: impl Fn(usize, &mut [f32]), values: [&mut [f32]; 2], words: &mut [f32]) {
        let [first, second] = values;
        decode(0, first);
        decode(1, second);
        pair_rows(isa, first, second, words);
    }
}

/// The 16 bits of the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
fn bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(bf16(first) | bf16(second) << 16)
}

isa_fn! {
    fn round(values: &mut [f32]) {
        for x in values {
            *x = f32::from_bits(bf16(*x) << 16);
        }
    }
}

isa_fn! {
    #[cfg(target_arch = "x86_64")]
    fn pair_neighbours(values: &[f32], words: &mut [f32]) {
        let (pairs, odd) = values.as_chunks::<2>();
        for (w, [first, second]) in words.iter_mut().zip(pairs) {
            *w = pair(*first, *second);
        }
        if let [first] = odd {
            words[pairs.len()] = pair(*first, 0.0);
        }
    }
}

isa_fn! {
    #[cfg(target_arch = "x86_64")]
    fn pair_rows(first: &[f32], second: &[f32], words: &mut [f32]) {
        for ((w, first), second) in words.iter_mut().zip(first).zip(second) {
            *w = pair(*first, *second);
        }
    }
}
