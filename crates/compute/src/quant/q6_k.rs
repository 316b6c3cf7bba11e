//! Q6_K: a super-block of 256 in 16 sub-blocks of 16, each with a signed 8-bit scale s.
//! Block: u8 low[128], u8 high[64], i8 s[16], f16 d; x = d s (q - 32), q = 4 low bits and 2 high bits.

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::{Path, rows};

pub const QUANT: Quant =
    Quant { id: TypeId::Q6_K, decode, encode: None, dot: Dot::Int8(int8::dot::<Q6K, 210, 8>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<210>().0) {
            let d = half_at(b, 208);
            // Each half of 128 has 64 low bytes and 32 high bytes; quarter k of it takes nibble k / 2 of low bytes
            // (k % 2) * 32 .. and bits 2k, 2k + 1 of the high bytes.
            for half in 0..2 {
                let (low, high) = (&b[half * 64..][..64], &b[128 + half * 32..][..32]);
                for k in 0..4 {
                    let out = &mut x[half * 128 + k * 32..][..32];
                    for i in 0..32 {
                        let bits = low[(k % 2) * 32 + i] >> (4 * (k / 2)) & 15 | (high[i] >> (2 * k) & 3) << 4;
                        let scale = d * f32::from(b[192 + half * 8 + k * 2 + i / 16] as i8);
                        out[i] = scale * (f32::from(bits) - 32.0);
                    }
                }
            }
        }
    }
}

struct Q6K;

impl Products<210, 8> for Q6K {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 210]; 4], x: &Blocks<8>) {
        let d = P::spread(P::scales(parts(blocks, 208)));
        for half in 0..2 {
            let s = P::widen(rows!(r => *array(blocks[r], 192 + half * 8)));
            let scales = P::mul(d, P::load(array(x.scales, 4 * half)));
            // The offset of 32: at most 2 * 128 * 16 * 127 a block, times 32 still exact as a float.
            let offsets = P::multiply(s, P::load_pairs(array(x.halves, 4 * half)));
            sums.add(P::mul(scales, P::splat(-32.0)), offsets);
            for k in 0..4 {
                let (low, high) = (half * 64 + k % 2 * 32, 128 + half * 32);
                // At most 63: s times a pair, four of them, is below 2^23.
                let mut fours = [offsets; 2];
                for i in 0..2 {
                    let four = P::bits(P::bytes(parts(blocks, low + 16 * i)), (k / 2 * 4) as u8, 15);
                    let two = P::bits(P::bytes(parts(blocks, high + 16 * i)), 2 * k as u8, 3);
                    let pairs = P::pairs(P::join(four, two, 4), &x.q[half * 4 + k][i]);
                    fours[i] = P::multiply(pairs, P::repeat(s, 2 * k + i));
                }
                sums.add(P::lane(scales, k), P::add_fours(fours[0], fours[1]));
            }
        }
    }
}
