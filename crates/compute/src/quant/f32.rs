//! F32: single precision, little-endian.

use planish_base::TypeId;

use super::Quant;
use crate::isa::isa_fn;

pub const QUANT: Quant = Quant { id: TypeId::F32, decode, encode: Some(encode), dot: None };

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
