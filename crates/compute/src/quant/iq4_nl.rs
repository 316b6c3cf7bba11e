//! IQ4_NL: 32 nibbles that choose from 16 values, times a scale. Block: f16 d, u8 q[16]; byte i holds element i low,
//! i + 16 high; x = d VALUES[q].

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::Path;

pub const QUANT: Quant =
    Quant { id: TypeId::IQ4_NL, decode, encode: None, dot: Dot::Int8(int8::dot::<Iq4Nl, 18, 1>) };

/// Denser around zero, where most weights are (`kvalues_iq4nl` of ggml).
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<18>().0) {
            values(half_at(b, 0), array(b, 2), x);
        }
    }
}

/// 32 values times d.
#[inline(always)]
pub(super) fn values(d: f32, q: &[u8; 16], x: &mut [f32; 32]) {
    for i in 0..16 {
        x[i] = d * f32::from(VALUES[usize::from(q[i] & 15)]);
        x[i + 16] = d * f32::from(VALUES[usize::from(q[i] >> 4)]);
    }
}

/// The products of 32 values with a block.
#[inline(always)]
pub(super) fn products<P: Path>(q: [&[u8; 16]; 4], x: &[[i8; 16]; 2], offsets: &[i32; 4]) -> P::Fours {
    let q = P::bytes(q);
    let (low, high) = (P::bits(q, 0, 15), P::bits(q, 4, 15));
    P::signed([P::look_up(&VALUES, low), P::look_up(&VALUES, high)], x, offsets)
}

struct Iq4Nl;

impl Products<18, 1> for Iq4Nl {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 18]; 4], x: &Blocks<1>) {
        sums.add_block(
            P::scales(parts(blocks, 0)),
            x.scales[0],
            products::<P>(parts(blocks, 2), &x.q[0], &x.offsets[0]),
        );
    }
}
