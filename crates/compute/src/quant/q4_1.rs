//! Q4_1: 32 nibbles times a scale plus a minimum. Block: f16 d, f16 m, u8 q[16]; byte i holds element i low,
//! i + 16 high; x = d q + m.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::int8::{self, Int8Block, Path, Products, Sum};
use crate::isa::isa_fn;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_1, decode, encode: None, dot: Some(int8::dot::<Q4_1, 20, 1>) };

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

struct Q4_1;

impl Products<20, 1> for Q4_1 {
    #[inline(always)]
    fn add<P: Path>(sum: &mut Sum, b: &[u8; 20], [x]: &[Int8Block; 1]) {
        let mut q = [0; 32];
        for i in 0..16 {
            q[i] = (b[4 + i] & 15) as i8;
            q[i + 16] = (b[4 + i] >> 4) as i8;
        }
        P::add(&mut sum.lanes, P::half([b[0], b[1]]) * x.scale, &q, [1, 1], &x.q);
        sum.minima = P::half([b[2], b[3]]).mul_add(x.sum, sum.minima);
    }
}
