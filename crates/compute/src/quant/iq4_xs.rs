//! IQ4_XS: a super-block of 256 in 8 sub-blocks of 32 nibbles that choose from the values of IQ4_NL, each with a 6-bit
//! scale s around 32. Block: f16 d, u16 high, u8 low[4], u8 q[128]; x = d (s - 32) VALUES[q].

use planish_base::TypeId;

use super::iq4_nl::{products, values};
use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::{Path, rows};

pub const QUANT: Quant =
    Quant { id: TypeId::IQ4_XS, decode, encode: None, dot: Dot::Int8(int8::dot::<Iq4Xs, 136, 8>) };

/// s of every sub-block, then nothing: nibble j of `low` below bits 2j and 2j + 1 of `high`.
#[inline(always)]
fn scales(b: &[u8; 8]) -> [u8; 16] {
    let (high, low) = (u16::from_le_bytes([b[2], b[3]]), u32::from_le_bytes(*array(b, 4)));
    let mut s = [0; 16];
    for j in 0..8 {
        let (low, high) = (low >> (4 * j) & 15, high >> (2 * j) & 3);
        s[j] = low as u8 | (high << 4) as u8;
    }
    s
}

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<136>().0) {
            let (d, s) = (half_at(b, 0), scales(array(b, 0)));
            for (j, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                values(d * (f32::from(s[j]) - 32.0), array(b, 8 + 16 * j), x);
            }
        }
    }
}

struct Iq4Xs;

impl Products<136, 8> for Iq4Xs {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 136]; 4], x: &Blocks<8>) {
        let d = P::spread(P::scales(parts(blocks, 0)));
        let s = rows!(r => scales(array(blocks[r], 0)));
        let s = P::bytes(rows!(r => &s[r]));
        for half in 0..2 {
            let s = P::add(P::small(s, half), P::splat(-32.0));
            let scales = P::mul(P::mul(d, s), P::load(array(x.scales, 4 * half)));
            for k in 0..4 {
                let j = 4 * half + k;
                sums.add(
                    P::lane(scales, k),
                    products::<P>(parts(blocks, 8 + 16 * j), &x.q[j], &x.offsets[j]),
                );
            }
        }
    }
}
