//! Q5_0: 32 integers of 5 bits around 16 times a scale. Block: f16 d, u8 high[4], u8 q[16]; byte i holds the low bits of
//! elements i and i + 16, bit i of `high` the fifth bit of element i; x = d (q - 16).

use planish_base::TypeId;

use super::{Dot, Quant, array, half_at, nibbles, parts};
use crate::int8::{self, Blocks, Products, Sums};
use crate::isa::isa_fn;
use crate::path::{Path, rows};

pub const QUANT: Quant =
    Quant { id: TypeId::Q5_0, decode, encode: None, dot: Dot::Int8(int8::dot::<Q5_0, 22, 1>) };

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<22>().0) {
            let (d, q) = (half_at(b, 0), integers(array(b, 2), array(b, 6)));
            for i in 0..32 {
                x[i] = d * (f32::from(q[i]) - 16.0);
            }
        }
    }
}

/// The integers of a block of 5 bits.
#[inline(always)]
pub(super) fn integers(high: &[u8; 4], low: &[u8; 16]) -> [u8; 32] {
    let (high, mut q) = (u32::from_le_bytes(*high), [0; 32]);
    nibbles(low, |i, four| q[i] = four | ((high >> i & 1) as u8 * 16));
    q
}

/// The integers as vectors.
#[inline(always)]
pub(super) fn unpack<P: Path>(high: [&[u8; 4]; 4], low: [&[u8; 16]; 4]) -> [P::Bytes; 2] {
    let q = P::bytes(low);
    let first = P::fifth(q, 0, rows!(r => [high[r][0], high[r][1]]));
    [first, P::fifth(q, 4, rows!(r => [high[r][2], high[r][3]]))]
}

struct Q5_0;

impl Products<22, 1> for Q5_0 {
    #[inline(always)]
    fn add<P: Path>(sums: &mut Sums<P>, blocks: [&[u8; 22]; 4], x: &Blocks<1>) {
        let d = P::scales(parts(blocks, 0));
        sums.add_block(d, x.scales[0], P::unsigned(unpack::<P>(parts(blocks, 2), parts(blocks, 6)), &x.q[0]));
        sums.add_minima(d, -16.0 * x.sums[0]);
    }
}
