//! Block codecs: the bytes of a ggml type to f32 and back. A type is one file here and one line in [`QUANTS`]
//! (its sizes are a line of `planish_base::layout`).
//!
//! The formats are those of ggml (`ggml-common.h`, `ggml-quants.c`); golden/quants holds bytes and values made by
//! the `gguf` Python package.

mod bf16;
mod f16;
mod f32;
mod iq4_nl;
mod iq4_xs;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use planish_base::{Error, Result, TypeId};

use crate::int8::Int8Row;
use crate::isa::Isa;
use crate::path::rows;

/// Decodes whole blocks; `dst.len()` elements.
pub type Decode = fn(Isa, &[u8], &mut [f32]);
/// Encodes whole blocks; `src.len()` elements.
pub type Encode = fn(&[f32], &mut [u8]);

/// The dot product of a row x with stored rows, a number of bytes apart: one sum for each.
#[derive(Clone, Copy)]
pub enum Dot {
    /// Of x rounded to int8, in integers: block types.
    Int8(fn(Isa, Int8Row, &[u8], usize, &mut [f32])),
    /// Of x as it is.
    Float(fn(Isa, &[f32], &[u8], usize, &mut [f32])),
}

/// How one ggml type is read and written.
pub struct Quant {
    /// The type.
    pub id: TypeId,
    /// Bytes to f32.
    pub decode: Decode,
    /// f32 to bytes, where planish writes the type.
    pub encode: Option<Encode>,
    /// Products with the bytes themselves, for decoding.
    pub dot: Dot,
}

/// Every type planish computes with.
pub static QUANTS: &[Quant] = &[
    f32::QUANT,
    f16::QUANT,
    bf16::QUANT,
    q8_0::QUANT,
    q4_0::QUANT,
    q4_1::QUANT,
    q5_0::QUANT,
    q5_1::QUANT,
    q2_k::QUANT,
    q3_k::QUANT,
    q4_k::QUANT,
    q5_k::QUANT,
    q6_k::QUANT,
    iq4_nl::QUANT,
    iq4_xs::QUANT,
];

impl Quant {
    /// The codec of a type.
    ///
    /// # Errors
    /// `tensor type` when planish has no codec for it.
    pub fn of(id: TypeId) -> Result<&'static Quant> {
        QUANTS.iter().find(|q| q.id == id).ok_or_else(|| {
            let known: Vec<String> = QUANTS.iter().map(|q| q.id.name()).collect();
            Error::input("tensor type", format!("tensor type {} cannot be computed with", id.name()))
                .with_hint(format!("use a file whose tensors are {}", known.join(", ")))
        })
    }

    /// Elements a block.
    pub fn block(&self) -> usize {
        self.id.layout().expect("every codec has a layout").block as usize
    }

    /// Bytes a block.
    pub fn block_bytes(&self) -> usize {
        self.id.layout().expect("every codec has a layout").bytes as usize
    }

    /// Decodes elements `start ..` of a row of blocks; `start` and the length need not be whole blocks.
    pub fn decode_range(&self, isa: Isa, row: &[u8], start: usize, dst: &mut [f32]) {
        const MAX_BLOCK: usize = 256;
        let (block, bytes) = (self.block(), self.block_bytes());
        let (mut at, mut done) = (start, 0);
        while done < dst.len() {
            let skip = at % block;
            let left = dst.len() - done;
            let src = &row[at / block * bytes..];
            let n = if skip == 0 && left >= block {
                let n = left / block * block;
                (self.decode)(isa, &src[..n / block * bytes], &mut dst[done..done + n]);
                n
            } else {
                let n = left.min(block - skip);
                let mut whole = [0f32; MAX_BLOCK];
                (self.decode)(isa, &src[..bytes], &mut whole[..block]);
                dst[done..done + n].copy_from_slice(&whole[skip..skip + n]);
                n
            };
            at += n;
            done += n;
        }
    }
}

/// A half-precision number in two little-endian bytes.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes(*array(bytes, at)))
}

/// The N elements from `at` on: a part of a block.
#[inline(always)]
fn array<T, const N: usize>(block: &[T], at: usize) -> &[T; N] {
    block[at..].first_chunk().expect("a block holds its parts")
}

/// The same part of a block of each of four rows.
#[inline(always)]
fn parts<const BYTES: usize, const N: usize>(blocks: [&[u8; BYTES]; 4], at: usize) -> [&[u8; N]; 4] {
    rows!(r => array(blocks[r], at))
}

/// The low halves of 16 bytes, then the high ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16], mut value: impl FnMut(usize, u8)) {
    // Or the compiler works on many blocks together and scatters their values, at a quarter of the speed.
    let bytes = std::hint::black_box(bytes);
    for half in 0..2 {
        for i in 0..16 {
            value(16 * half + i, bytes[i] >> (4 * half) & 15);
        }
    }
}

/// IEEE half to single without a branch, so that a loop over it becomes vector code.
///
/// The exponent is rebiased by a multiplication, which also normalises subnormals; infinities and NaNs are mended.
#[inline(always)]
pub(crate) fn half_to_f32(h: u16) -> f32 {
    // The sign goes to the top, the rest to its place in a single.
    let bits = i32::from(h as i16) << 13 & 0x8fff_e000_u32 as i32;
    // 2^112 moves the half's exponent bias of 15 to the single's 127.
    let value = f32::from_bits(bits as u32) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x0f80_0000 == 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `half` crate is the reference for all 65,536 halves.
    #[test]
    fn every_half_is_right() {
        for h in 0..=u16::MAX {
            let (ours, want) = (half_to_f32(h), half::f16::from_bits(h).to_f32());
            assert!(ours.to_bits() == want.to_bits() || (ours.is_nan() && want.is_nan()), "{h:#06x}");
        }
    }
}
