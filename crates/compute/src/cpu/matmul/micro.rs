//! The micro-kernel: a panel of [`MR`] rows times a panel of [`NR`] columns, one fused multiply-add chain over k for
//! each element. 6 x 16 fills twelve of the sixteen AVX2 registers with sums and leaves room for b and a.

use crate::call::Store;
use crate::isa::isa_fn;

pub const MR: usize = 6;
pub const NR: usize = 16;

/// A rectangle of c.
#[derive(Clone, Copy)]
pub struct Tile {
    pub p: *mut f32,
    pub stride: usize,
    pub m: usize,
    pub n: usize,
}

isa_fn! {
    /// c (+)= scale * a b' for packed blocks a [m / MR][kc][MR] and b [n / NR][kc][NR].
    pub fn block(kc: usize, a: &[f32], b: &[f32], c: Tile, scale: f32, store: Store) {
        for (bp, j) in b.chunks_exact(NR * kc).zip((0..c.n).step_by(NR)) {
            for (ap, i) in a.chunks_exact(MR * kc).zip((0..c.m).step_by(MR)) {
                let sums = product(ap, bp);
                let (m, n) = (MR.min(c.m - i), NR.min(c.n - j));
                for (r, sum) in sums.iter().enumerate().take(m) {
                    // SAFETY: row i + r and columns j .. j + n lie in the rectangle.
                    let row = unsafe { std::slice::from_raw_parts_mut(c.p.add((i + r) * c.stride + j), n) };
                    write(row, sum, scale, store);
                }
            }
        }
    }
}

#[inline(always)]
fn product(a: &[f32], b: &[f32]) -> [[f32; NR]; MR] {
    let mut sums = [[0f32; NR]; MR];
    for (a, b) in a.as_chunks::<MR>().0.iter().zip(b.as_chunks::<NR>().0) {
        for i in 0..MR {
            for j in 0..NR {
                sums[i][j] = a[i].mul_add(b[j], sums[i][j]);
            }
        }
    }
    sums
}

#[inline(always)]
fn write(row: &mut [f32], sum: &[f32; NR], scale: f32, store: Store) {
    match store {
        Store::Replace => row.iter_mut().zip(sum).for_each(|(c, s)| *c = scale * s),
        Store::Accumulate => row.iter_mut().zip(sum).for_each(|(c, s)| *c += scale * s),
    }
}
