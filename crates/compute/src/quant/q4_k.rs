//! Q4_K: a super-block of 256 in 8 sub-blocks of 32, each with a 6-bit scale s and a 6-bit minimum m.
//! Block: f16 d, f16 dmin, u8 scales[12], u8 q[128]; x = d s q - dmin m.

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::Q4_K, decode, encode: None, dot: Dot::Int8(int8::dot::<Q4K, 144, 8>) };

/// The scales and the minima of a block. The first four lie in the low 6 bits of bytes j and j + 4, the others in the
/// nibbles of byte j + 8 with their upper two bits on top of bytes j and j + 4.
#[inline(always)]
pub(super) fn scales_minima(b: &[u8; 12]) -> ([[u8; 4]; 2], [[u8; 4]; 2]) {
    let [low, minima, both] = [0, 4, 8].map(|at| u32::from_le_bytes(*array(b, at)));
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
    let scales = [low & six, both & four | low >> 2 & two];
    let minima = [minima & six, both >> 4 & four | minima >> 2 & two];
    (scales.map(u32::to_le_bytes), minima.map(u32::to_le_bytes))
}

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<144>().0) {
            let (d, dmin) = (half_at(b, 0), half_at(b, 2));
            let (scales, minima) = scales_minima(array(b, 4));
            // 32 bytes hold two sub-blocks: the low nibbles the first, the high ones the second.
            for (j, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let q: &[u8; 32] = array(b, 16 + j / 2 * 32);
                let (a, c) = (d * f32::from(scales[j / 4][j % 4]), dmin * f32::from(minima[j / 4][j % 4]));
                for i in 0..32 {
                    x[i] = a * f32::from(q[i] >> (4 * (j % 2)) & 15) - c;
                }
            }
        }
    }
}

struct Q4K;

impl Products<144, 8> for Q4K {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 144]; 4], x: &Blocks<8>) {
        let scales = scale_minimum::<P>(sums, parts(blocks, 0), x);
        for pair in 0..4 {
            let [a, c] = [P::bytes(parts(blocks, 16 + pair * 32)), P::bytes(parts(blocks, 32 + pair * 32))];
            for half in 0..2 {
                let (j, shift) = (2 * pair + half, 4 * half as u8);
                let products = P::unsigned([P::bits(a, shift, 15), P::bits(c, shift, 15)], &x.q[j]);
                sums.add(P::lane(scales[j / 4], j % 4), products);
            }
        }
    }
}

/// The beginning of a block of Q4_K and Q5_K: adds what the minima contribute and gives the scales, d s times those
/// of x.
#[inline(always)]
pub(super) fn scale_minimum<P: Path>(
    sums: &mut Sums<P>,
    blocks: [&[u8; 16]; 4],
    x: &Blocks<8>,
) -> [P::Floats; 2] {
    let (d, dmin) = P::scale_pairs(parts(blocks, 0));
    let (d, less) = (P::spread(d), P::spread(P::mul_scales(dmin, -1.0)));
    // As in `scales_minima`; the upper two bits are joined as floats.
    let b = P::bytes(blocks);
    let (six, low, high, two) = (P::bits(b, 0, 63), P::bits(b, 0, 15), P::bits(b, 4, 15), P::bits(b, 6, 3));
    let join = P::splat(16.0);
    let scales = [P::small(six, 1), P::mul_add(P::small(two, 1), join, P::small(low, 3))];
    let minima = [P::small(six, 2), P::mul_add(P::small(two, 2), join, P::small(high, 3))];
    let mut out = scales;
    for i in 0..2 {
        let m = P::mul(less, minima[i]);
        sums.rows = P::mul_add(m, P::load(array(x.sums, 4 * i)), sums.rows);
        out[i] = P::mul(P::mul(d, scales[i]), P::load(array(x.scales, 4 * i)));
    }
    out
}
