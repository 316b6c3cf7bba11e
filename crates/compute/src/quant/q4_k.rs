//! Q4_K: a super-block of 256 in 8 sub-blocks of 32, each with a 6-bit scale s and a 6-bit minimum m.
//! Block: f16 d, f16 dmin, u8 scales[12], u8 q[128]; x = d s q - dmin m.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::int8::{self, Int8Block, Path, Products, Sum};
use crate::isa::isa_fn;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_K, decode, encode: None, dot: Some(int8::dot::<Q4K, 144, 8>) };

/// The scales and the minima of a block. The first four lie in the low 6 bits of bytes j and j + 4, the others in the
/// nibbles of byte j + 8 with their upper two bits on top of bytes j and j + 4.
#[inline(always)]
fn scales_minima(b: &[u8; 144]) -> ([f32; 8], [f32; 8]) {
    let (mut scales, mut minima) = ([0f32; 8], [0f32; 8]);
    for j in 0..4 {
        let (s, m, both) = (b[4 + j], b[8 + j], b[12 + j]);
        scales[j] = f32::from(s & 63);
        minima[j] = f32::from(m & 63);
        scales[j + 4] = f32::from(both & 15 | s >> 6 << 4);
        minima[j + 4] = f32::from(both >> 4 | m >> 6 << 4);
    }
    (scales, minima)
}

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<144>().0) {
            let (d, dmin) = (half_at(b, 0), half_at(b, 2));
            let (scales, minima) = scales_minima(b);
            // 32 bytes hold two sub-blocks: the low nibbles the first, the high ones the second.
            for pair in 0..4 {
                let q = &b[16 + pair * 32..][..32];
                for half in 0..2 {
                    let (a, c) = (d * scales[2 * pair + half], dmin * minima[2 * pair + half]);
                    let out = &mut x[(2 * pair + half) * 32..][..32];
                    for i in 0..32 {
                        out[i] = a * f32::from(q[i] >> (4 * half) & 15) - c;
                    }
                }
            }
        }
    }
}

struct Q4K;

impl Products<144, 8> for Q4K {
    #[inline(always)]
    fn add<P: Path>(sum: &mut Sum, b: &[u8; 144], x: &[Int8Block; 8]) {
        let (d, dmin) = (P::half([b[0], b[1]]), P::half([b[2], b[3]]));
        let (scales, minima) = scales_minima(b);
        let mut sum_minima = 0.0;
        for pair in 0..4 {
            let (mut low, mut high) = ([0; 32], [0; 32]);
            for i in 0..32 {
                let both = b[16 + pair * 32 + i];
                (low[i], high[i]) = ((both & 15) as i8, (both >> 4) as i8);
            }
            for (j, q) in [(2 * pair, low), (2 * pair + 1, high)] {
                P::add(&mut sum.lanes, d * scales[j] * x[j].scale, &q, [1, 1], &x[j].q);
                sum_minima = minima[j].mul_add(x[j].sum, sum_minima);
            }
        }
        sum.minima = (-dmin).mul_add(sum_minima, sum.minima);
    }
}
