//! Q3_K: a super-block of 256 in 16 sub-blocks of 16, each with a 6-bit scale s around 32.
//! Block: u8 high[32], u8 q[64], u8 scales[12], f16 d; x = d (s - 32) (q - 4), q = 2 low bits and the third, bit j of
//! byte i of `high` for element i of the j-th 32.

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::{Path, rows};

pub const QUANT: Quant =
    Quant { id: TypeId::Q3_K, decode, encode: None, dot: Dot::Int8(int8::dot::<Q3K, 110, 8>) };

/// s - 32 of every sub-block. Byte j % 8 has the low four bits, low or high; byte 8 + j % 4 has the upper two, at
/// bits 2 (j / 4) and above.
#[inline(always)]
fn scales(b: &[u8; 12]) -> [[u8; 8]; 2] {
    let low = u64::from_le_bytes(*array(b, 0));
    let high = u64::from(u32::from_le_bytes(*array(b, 8)));
    let (four, two) = (0x0f0f_0f0f_0f0f_0f0f, 0x3030_3030_3030_3030);
    // The upper bits of sub-blocks 0 to 3 and of 4 to 7, moved to bits 4 and 5 of their bytes; then of 8 to 15.
    let first = (low & four) | ((high << 4 | high << 34) & two);
    let second = (low >> 4 & four) | ((high | high << 30) & two);
    [first, second].map(|s| s.to_le_bytes().map(|s| s.wrapping_sub(32)))
}

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<110>().0) {
            let (d, high): (_, &[u8; 32]) = (half_at(b, 108), array(b, 0));
            let s = scales(array(b, 96));
            for (j, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (q, shift): (&[u8; 32], _) = (array(b, 32 + j / 4 * 32), j % 4 * 2);
                for i in 0..32 {
                    let bits = q[i] >> shift & 3 | (high[i] >> j & 1) << 2;
                    let scale = d * f32::from(s[j / 4][j % 4 * 2 + i / 16] as i8);
                    x[i] = scale * (f32::from(bits) - 4.0);
                }
            }
        }
    }
}

struct Q3K;

impl Products<110, 8> for Q3K {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 110]; 4], x: &Blocks<8>) {
        let d = P::spread(P::scales(parts(blocks, 108)));
        let s = rows!(r => scales(array(blocks[r], 96)));
        for half in 0..2 {
            let s = P::widen(rows!(r => s[r][half]));
            let scales = P::mul(d, P::load(array(x.scales, 4 * half)));
            let offsets = P::multiply(s, P::load_pairs(array(x.halves, 4 * half)));
            sums.add(P::mul(scales, P::splat(-4.0)), offsets);
            for k in 0..4 {
                let mut fours = [offsets; 2];
                for i in 0..2 {
                    let two = P::bits(P::bytes(parts(blocks, 32 + half * 32 + 16 * i)), 2 * k as u8, 3);
                    let third = P::bits(P::bytes(parts(blocks, 16 * i)), (half * 4 + k) as u8, 1);
                    let pairs = P::pairs(P::join(two, third, 2), &x.q[half * 4 + k][i]);
                    fours[i] = P::multiply(pairs, P::repeat(s, 2 * k + i));
                }
                sums.add(P::lane(scales, k), P::add_fours(fours[0], fours[1]));
            }
        }
    }
}
