//! F32: single precision, little-endian.

use planish_base::TypeId;

use super::{Dot, Quant};
use crate::float_dot::{self, Stored};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::F32, decode, encode: Some(encode), dot: Dot::Float(float_dot::dot::<F32, 4>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
            *d = f32::from_le_bytes(*s);
        }
    }
}

fn encode(src: &[f32], dst: &mut [u8]) {
    for (s, d) in src.iter().zip(dst.as_chunks_mut::<4>().0) {
        *d = s.to_le_bytes();
    }
}

struct F32;

impl Stored<4> for F32 {
    #[inline(always)]
    fn eight<P: Path>(b: [&[[u8; 4]; 8]; 4]) -> [P::Floats; 2] {
        P::singles(b)
    }
}
