//! Q2_K: a super-block of 256 in 16 sub-blocks of 16, each with a 4-bit scale s and a 4-bit minimum m.
//! Block: u8 scales[16] (s low, m high), u8 q[64], f16 d, f16 dmin; x = d s q - dmin m.

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::{Path, rows};

pub const QUANT: Quant =
    Quant { id: TypeId::Q2_K, decode, encode: None, dot: Dot::Int8(int8::dot::<Q2K, 84, 8>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<84>().0) {
            let (d, dmin) = (half_at(b, 80), half_at(b, 82));
            // 32 bytes hold four groups of 32: bits 2k and 2k + 1 group k.
            for (j, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (q, shift): (&[u8; 32], _) = (array(b, 16 + j / 4 * 32), j % 4 * 2);
                for i in 0..32 {
                    let both = b[j * 2 + i / 16];
                    let (a, c) = (d * f32::from(both & 15), dmin * f32::from(both >> 4));
                    x[i] = a * f32::from(q[i] >> shift & 3) - c;
                }
            }
        }
    }
}

struct Q2K;

impl Products<84, 8> for Q2K {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 84]; 4], x: &Blocks<8>) {
        let (d, dmin) = P::scale_pairs(parts(blocks, 80));
        let (d, less) = (P::spread(d), P::spread(P::mul_scales(dmin, -1.0)));
        for half in 0..2 {
            let both = rows!(r => u64::from_le_bytes(*array(blocks[r], half * 8)));
            let s = P::widen(rows!(r => (both[r] & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes()));
            let m = P::widen(rows!(r => (both[r] >> 4 & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes()));
            let x_scales = P::load(array(x.scales, 4 * half));
            let minima = P::multiply(m, P::load_pairs(array(x.halves, 4 * half)));
            sums.add(P::mul(less, x_scales), minima);
            let scales = P::mul(d, x_scales);
            for k in 0..4 {
                let mut fours = [minima; 2];
                for i in 0..2 {
                    let q = P::bits(P::bytes(parts(blocks, 16 + half * 32 + 16 * i)), 2 * k as u8, 3);
                    fours[i] = P::multiply(P::pairs(q, &x.q[half * 4 + k][i]), P::repeat(s, 2 * k + i));
                }
                sums.add(P::lane(scales, k), P::add_fours(fours[0], fours[1]));
            }
        }
    }
}
