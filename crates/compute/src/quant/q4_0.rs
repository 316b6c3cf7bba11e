//! Q4_0: 32 nibbles around 8 times a scale. Block: f16 d, u8 q[16]; byte i holds element i low, i + 16 high;
//! x = d (q - 8).

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, nibbles, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_0, decode, encode: None, dot: Dot::Int8(int8::dot::<Q4_0, 18, 1>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<18>().0) {
            let d = half_at(b, 0);
            nibbles(array(b, 2), |i, q| x[i] = d * (f32::from(q) - 8.0));
        }
    }
}

struct Q4_0;

impl Products<18, 1> for Q4_0 {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 18]; 4], x: &Blocks<1>) {
        let d = P::scales(parts(blocks, 0));
        let q = P::bytes(parts(blocks, 2));
        let products = P::unsigned([P::bits(q, 0, 15), P::bits(q, 4, 15)], &x.q[0]);
        sums.add_block(d, x.scales[0], products);
        sums.add_minima(d, -8.0 * x.sums[0]);
    }
}
