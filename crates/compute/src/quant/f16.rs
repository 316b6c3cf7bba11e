//! F16: IEEE half precision, little-endian.

use planish_base::TypeId;

use super::{Dot, Quant, half_to_f32};
use crate::float_dot::{self, Stored};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::F16, decode, encode: Some(encode), dot: Dot::Float(float_dot::dot::<F16, 2>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (d, s) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
            *d = half_to_f32(u16::from_le_bytes(*s));
        }
    }
}

/// Rounds to nearest, ties to even; too large becomes infinity.
fn encode(src: &[f32], dst: &mut [u8]) {
    for (s, d) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
        *d = half::f16::from_f32(*s).to_le_bytes();
    }
}

struct F16;

impl Stored<2> for F16 {
    #[inline(always)]
    fn eight<P: Path>(b: [&[[u8; 2]; 8]; 4]) -> [P::Floats; 2] {
        P::halves(b)
    }
}
