//! BF16: the upper half of a single, little-endian.

use planish_base::TypeId;

use super::{Dot, Quant};
use crate::float_dot::{self, Stored};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::BF16, decode, encode: Some(encode), dot: Dot::Float(float_dot::dot::<Bf16, 2>) };

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

struct Bf16;

impl Stored<2> for Bf16 {
    #[inline(always)]
    fn eight<P: Path>(b: [&[[u8; 2]; 8]; 4]) -> [P::Floats; 2] {
        P::upper_halves(b)
    }
}
