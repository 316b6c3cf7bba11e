//! Q4_0: 32 nibbles around 8 times a scale. Block: f16 d, u8 q[16]; byte i holds element i low, i + 16 high;
//! x = d (q - 8).

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::int8::{self, Int8Block, Path, Products, Sum};
use crate::isa::isa_fn;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_0, decode, encode: None, dot: Some(int8::dot::<Q4_0, 18, 1>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<18>().0) {
            let d = half_at(b, 0);
            for i in 0..16 {
                x[i] = d * (f32::from(b[2 + i] & 15) - 8.0);
                x[i + 16] = d * (f32::from(b[2 + i] >> 4) - 8.0);
            }
        }
    }
}

struct Q4_0;

impl Products<18, 1> for Q4_0 {
    #[inline(always)]
    fn add<P: Path>(sum: &mut Sum, b: &[u8; 18], [x]: &[Int8Block; 1]) {
        let mut q = [0; 32];
        for i in 0..16 {
            q[i] = (b[2 + i] & 15) as i8 - 8;
            q[i + 16] = (b[2 + i] >> 4) as i8 - 8;
        }
        P::add(&mut sum.lanes, P::half([b[0], b[1]]) * x.scale, &q, [1, 1], &x.q);
    }
}
