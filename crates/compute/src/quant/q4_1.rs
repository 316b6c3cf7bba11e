//! Q4_1: 32 nibbles times a scale plus a minimum. Block: f16 d, f16 m, u8 q[16]; byte i holds element i low,
//! i + 16 high; x = d q + m.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::isa::isa_fn;

pub const QUANT: Quant = Quant { id: TypeId::Q4_1, decode, encode: None };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<20>().0) {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            for i in 0..16 {
                x[i] = d * f32::from(b[4 + i] & 15) + m;
                x[i + 16] = d * f32::from(b[4 + i] >> 4) + m;
            }
        }
    }
}
