//! Q4_1: 32 nibbles times a scale plus a minimum. Block: f16 d, f16 m, u8 q[16]; byte i holds element i low,
//! i + 16 high; x = d q + m.

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, nibbles, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_1, decode, encode: None, dot: Dot::Int8(int8::dot::<Q4_1, 20, 1>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<20>().0) {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            nibbles(array(b, 4), |i, q| x[i] = d * f32::from(q) + m);
        }
    }
}

struct Q4_1;

impl Products<20, 1> for Q4_1 {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 20]; 4], x: &Blocks<1>) {
        let (d, m) = P::scale_pairs(parts(blocks, 0));
        let q = P::bytes(parts(blocks, 4));
        let products = P::unsigned([P::bits(q, 0, 15), P::bits(q, 4, 15)], &x.q[0]);
        sums.add_block(d, x.scales[0], products);
        sums.add_minima(m, x.sums[0]);
    }
}
