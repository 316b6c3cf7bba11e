//! Q8_0: 32 signed bytes times one half-precision scale. Block: f16 d, i8 q[32]; x = d q.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::isa::isa_fn;

pub const QUANT: Quant = Quant { id: TypeId::Q8_0, decode, encode: Some(encode) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<34>().0) {
            let d = half_at(b, 0);
            for i in 0..32 {
                x[i] = d * f32::from(b[2 + i] as i8);
            }
        }
    }
}

/// d = max |x| / 127, q = x / d rounded half away from zero, as ggml's reference encoder.
fn encode(src: &[f32], dst: &mut [u8]) {
    for (x, b) in src.as_chunks::<32>().0.iter().zip(dst.as_chunks_mut::<34>().0) {
        let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let d = max / 127.0;
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        b[..2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes());
        for i in 0..32 {
            b[2 + i] = (x[i] * inverse).round() as i8 as u8;
        }
    }
}
