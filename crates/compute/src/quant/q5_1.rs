//! Q5_1: 32 integers of 5 bits times a scale plus a minimum. Block: f16 d, f16 m, u8 high[4], u8 q[16], the bits as in
//! Q5_0; x = d q + m.

use planish_base::TypeId;

use super::q5_0::{integers, unpack};
use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q5_1, decode, encode: None, dot: Dot::Int8(int8::dot::<Q5_1, 24, 1>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<24>().0) {
            let (d, m, q) = (half_at(b, 0), half_at(b, 2), integers(array(b, 4), array(b, 8)));
            for i in 0..32 {
                x[i] = d * f32::from(q[i]) + m;
            }
        }
    }
}

struct Q5_1;

impl Products<24, 1> for Q5_1 {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 24]; 4], x: &Blocks<1>) {
        let (d, m) = P::scale_pairs(parts(blocks, 0));
        sums.add_block(d, x.scales[0], P::unsigned(unpack::<P>(parts(blocks, 4), parts(blocks, 8)), &x.q[0]));
        sums.add_minima(m, x.sums[0]);
    }
}
