//! Q8_0: 32 signed bytes times one half-precision scale. Block: f16 d, i8 q[32]; x = d q.

use planish_base::TypeId;

use super::{Dot, Quant, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q8_0, decode, encode: Some(encode), dot: Dot::Int8(int8::dot::<Q8_0, 34, 1>) };

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

struct Q8_0;

impl Products<34, 1> for Q8_0 {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 34]; 4], x: &Blocks<1>) {
        let products =
            P::signed([P::bytes(parts(blocks, 2)), P::bytes(parts(blocks, 18))], &x.q[0], &x.offsets[0]);
        sums.add_block(P::scales(parts(blocks, 0)), x.scales[0], products);
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
