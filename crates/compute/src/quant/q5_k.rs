//! Q5_K: a super-block of 256 in 8 sub-blocks of 32, each with a 6-bit scale s and a 6-bit minimum m, packed as in
//! Q4_K. Block: f16 d, f16 dmin, u8 scales[12], u8 high[32], u8 q[128]; x = d s q - dmin m, q = 4 low bits and the
//! fifth, bit j of byte i of `high` for element i of sub-block j.

use planish_base::TypeId;

use super::q4_k::{scale_minimum, scales_minima};
use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q5_K, decode, encode: None, dot: Dot::Int8(int8::dot::<Q5K, 176, 8>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<176>().0) {
            let (d, dmin) = (half_at(b, 0), half_at(b, 2));
            let (scales, minima) = scales_minima(array(b, 4));
            let high: &[u8; 32] = array(b, 16);
            for (j, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let q: &[u8; 32] = array(b, 48 + j / 2 * 32);
                let (a, c) = (d * f32::from(scales[j / 4][j % 4]), dmin * f32::from(minima[j / 4][j % 4]));
                for i in 0..32 {
                    let bits = q[i] >> (4 * (j % 2)) & 15 | (high[i] >> j & 1) << 4;
                    x[i] = a * f32::from(bits) - c;
                }
            }
        }
    }
}

struct Q5K;

impl Products<176, 8> for Q5K {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 176]; 4], x: &Blocks<8>) {
        let scales = scale_minimum::<P>(sums, parts(blocks, 0), x);
        let fifth = [P::bytes(parts(blocks, 16)), P::bytes(parts(blocks, 32))];
        for pair in 0..4 {
            let q = [P::bytes(parts(blocks, 48 + pair * 32)), P::bytes(parts(blocks, 64 + pair * 32))];
            for half in 0..2 {
                let (j, shift) = (2 * pair + half, 4 * half as u8);
                let low = P::join(P::bits(q[0], shift, 15), P::bits(fifth[0], j as u8, 1), 4);
                let high = P::join(P::bits(q[1], shift, 15), P::bits(fifth[1], j as u8, 1), 4);
                sums.add(P::lane(scales[j / 4], j % 4), P::unsigned([low, high], &x.q[j]));
            }
        }
    }
}
