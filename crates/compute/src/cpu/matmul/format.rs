//! What packed operands are made of: words of 32 bits, each one k or a pair of them.

use crate::int8;
use crate::isa::{Isa, isa_fn};

/// How values of an operand become words. `decode` writes values; where words are values it writes them in place.
pub trait Format {
    /// Values of k in a word of [`Format::across`].
    const PAIR: usize;
    /// Whether words are the values themselves, so that an operand of f32 need not be packed.
    const PLAIN: bool;

    /// The words of so many k.
    fn words(k: usize) -> usize {
        k.div_ceil(Self::PAIR)
    }

    /// How many k fit into so many words.
    fn depth(words: usize) -> usize {
        words * Self::PAIR
    }

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

/// Values of k in a block of integers.
const INTEGERS: usize = 32;
/// The largest integer. The products of a block add up to less than 2^31, and a value is off by half of this part of the
/// block's largest at most, where bf16 is off by up to a 512th of itself.
const LARGEST: f32 = 8191.0;

/// Blocks of integers times a scale, as f32: for machines without instructions for them.
pub struct RoundedToIntegers;

impl Format for RoundedToIntegers {
    const PAIR: usize = 1;
    const PLAIN: bool = false;

    fn along(_: Isa, decode: impl FnOnce(&mut [f32]), _: &mut [f32], words: &mut [f32]) {
        decode(words);
        for block in words.chunks_mut(INTEGERS) {
            let (scale, inverse) =
                int8::scale_of(block.iter().map(|x| x.abs().to_bits()).fold(0, u32::max), LARGEST);
            block.iter_mut().for_each(|x| *x = scale * ((*x * inverse + int8::ROUND) - int8::ROUND));
        }
    }

    fn across(_: Isa, _: impl Fn(usize, &mut [f32]), _: [&mut [f32]; 2], _: &mut [f32]) {
        unreachable!("a block of k lies in one stored row");
    }
}

/// Blocks of integers as 16 words of two, those of k and k + 16, and a word with the scale.
#[cfg(target_arch = "x86_64")]
pub struct Integers;

#[cfg(target_arch = "x86_64")]
impl Integers {
    const WORDS: usize = INTEGERS / 2 + 1;
}

#[cfg(target_arch = "x86_64")]
impl Format for Integers {
    const PAIR: usize = 1;
    const PLAIN: bool = false;

    fn words(k: usize) -> usize {
        k.div_ceil(INTEGERS) * Self::WORDS
    }

    fn depth(words: usize) -> usize {
        words / Self::WORDS * INTEGERS
    }

    fn along(isa: Isa, decode: impl FnOnce(&mut [f32]), values: &mut [f32], words: &mut [f32]) {
        decode(values);
        integers(isa, values, words);
    }

    fn across(_: Isa, _: impl Fn(usize, &mut [f32]), _: [&mut [f32]; 2], _: &mut [f32]) {
        unreachable!("a block of k lies in one stored row");
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
    #[cfg(target_arch = "x86_64")]
    fn integers(values: &[f32], words: &mut [f32]) {
        let words = words.as_chunks_mut().0;
        let (blocks, rest) = values.as_chunks();
        for (values, words) in blocks.iter().zip(&mut *words) {
            // One block at a time: across blocks the compiler would gather.
            block_of_integers(std::hint::black_box(values), words);
        }
        if !rest.is_empty() {
            let mut values = [0.0; INTEGERS];
            values[..rest.len()].copy_from_slice(rest);
            block_of_integers(&values, &mut words[blocks.len()]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn block_of_integers(x: &[f32; INTEGERS], words: &mut [f32; Integers::WORDS]) {
    const HALF: usize = INTEGERS / 2;
    let mut most = [0u32; HALF];
    for i in 0..HALF {
        most[i] = x[i].abs().to_bits().max(x[i + HALF].abs().to_bits());
    }
    let (scale, inverse) = int8::scale_of(most.into_iter().fold(0, u32::max), LARGEST);
    for i in 0..HALF {
        let rounded = |v: f32| (v * inverse + int8::ROUND).to_bits();
        words[i] = f32::from_bits(rounded(x[i]) & 0xffff | rounded(x[i + HALF]) << 16);
    }
    words[HALF] = scale;
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
