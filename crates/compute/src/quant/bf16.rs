//! BF16: the upper half of a single, little-endian.

use planish_base::TypeId;

use super::Quant;
use crate::isa::isa_fn;

pub const QUANT: Quant = Quant { id: TypeId::BF16, decode, encode: Some(encode), dot: None };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
            *d = f32::from_bits(u32::from(u16::from_le_bytes(*s)) << 16);
        }
    }
}

/// Rounds to nearest, ties to even.
fn encode(src: &[f32], dst: &mut [u8]) {
    for (s, d) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
        *d = half::bf16::from_f32(*s).to_le_bytes();
    }
}
