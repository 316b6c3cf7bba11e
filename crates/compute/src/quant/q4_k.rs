//! Q4_K: a super-block of 256 in 8 sub-blocks of 32, each with a 6-bit scale s and a 6-bit minimum m.
//! Block: f16 d, f16 dmin, u8 scales[12], u8 q[128]; x = d s q - dmin m.

use planish_base::TypeId;

use super::{Quant, half_at};
use crate::isa::isa_fn;

pub const QUANT: Quant = Quant { id: TypeId::Q4_K, decode, encode: None };

/// The 6-bit scale and minimum of sub-block j: the first four lie in the low bits of bytes j and j + 4, the others in
/// the nibbles of byte j + 4 with their upper two bits on top of bytes j - 4 and j.
#[inline(always)]
fn scale_min(s: &[u8; 12], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

isa_fn! {
    fn decode(src: &[u8], dst: &mut [f32]) {
        for (x, b) in dst.as_chunks_mut::<256>().0.iter_mut().zip(src.as_chunks::<144>().0) {
            let (d, dmin) = (half_at(b, 0), half_at(b, 2));
            let mut scales = [0u8; 12];
            scales.copy_from_slice(&b[4..16]);
            // 32 bytes hold two sub-blocks: the low nibbles the first, the high ones the second.
            for pair in 0..4 {
                let q = &b[16 + pair * 32..][..32];
                for half in 0..2 {
                    let (s, m) = scale_min(&scales, 2 * pair + half);
                    let (a, c) = (d * s, dmin * m);
                    let out = &mut x[(2 * pair + half) * 32..][..32];
                    for i in 0..32 {
                        out[i] = a * f32::from(q[i] >> (4 * half) & 15) - c;
                    }
                }
            }
        }
    }
}
