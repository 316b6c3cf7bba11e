//! Q6_K: a super-block of 256 in 16 sub-blocks of 16, each with a signed 8-bit scale s.
//! Block: u8 low[128], u8 high[64], i8 s[16], f16 d; x = d s (q - 32), q = 4 low bits and 2 high bits.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::int8::{self, Int8Block, Path, Products, Sum};
use crate::isa::isa_fn;

pub const QUANT: Quant =
    Quant { id: TypeId::Q6_K, decode, encode: None, dot: Some(int8::dot::<Q6K, 210, 8>) };

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
    fn add<P: Path>(sum: &mut Sum, b: &[u8; 210], x: &[Int8Block; 8]) {
        let d = P::half([b[208], b[209]]);
        for half in 0..2 {
            let (low, high) = (&b[half * 64..][..64], &b[128 + half * 32..][..32]);
            for k in 0..4 {
                let mut q = [0; 32];
                for i in 0..32 {
                    let bits = low[(k % 2) * 32 + i] >> (4 * (k / 2)) & 15 | (high[i] >> (2 * k) & 3) << 4;
                    q[i] = bits as i8 - 32;
                }
                // s (q - 32) is at most 4096, so that a lane's sum is below 2^21: exact as a float, too.
                let s = |i: usize| i16::from(b[192 + half * 8 + k * 2 + i] as i8);
                let x = &x[half * 4 + k];
                P::add(&mut sum.lanes, d * x.scale, &q, [s(0), s(1)], &x.q);
            }
        }
    }
}
