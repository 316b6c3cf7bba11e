//! The small products of attention: tiles of queries and keys in scratch memory.

use crate::cpu::memory::Rows;
use crate::isa::isa_fn;

/// Query rows of a tile.
pub const QUERIES: usize = 32;
/// Keys of a tile; a KV block is one.
pub const KEYS: usize = crate::call::KV_BLOCK;
const LANES: usize = 16;
/// Vectors of columns that a single row takes together.
const WIDE: usize = 4;

/// Width of a head in scratch: whole vectors, zeros at the end.
pub fn padded(width: usize) -> usize {
    width.next_multiple_of(LANES)
}

/// A matrix operand of [`product`]: element (i, k) lies at i * outer + k * inner.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub data: &'a [f32],
    pub outer: usize,
    pub inner: usize,
}

/// Rows first .. first + n, columns col .. col + width, times `scale`, as [n, padded(width)].
pub fn load(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, scale: f32, dst: &mut [f32]) {
    for (i, d) in dst.chunks_exact_mut(padded(width)).take(n).enumerate() {
        for (d, s) in d.iter_mut().zip(&x.row(first + i)[col..col + width]) {
            *d = s * scale;
        }
        d[width..].fill(0.0);
    }
}

/// Rows first .. first + n, columns col .. col + width, transposed to [width, KEYS] with zeros beyond n.
pub fn load_transposed(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, dst: &mut [f32]) {
    if n < KEYS {
        dst[..width * KEYS].fill(0.0);
    }
    for j in 0..n {
        for (e, s) in x.row(first + j)[col..col + width].iter().enumerate() {
            dst[e * KEYS + j] = *s;
        }
    }
}

isa_fn! {
    /// c[i][j] = c0[i][j] + sum over k < kn of a(i, k) b[k][j], for i < m and j < cols; cols is whole vectors, n the
    /// stride of b and c; c0 is the old c or, without `add`, 0.
    #[allow(clippy::too_many_arguments)]
    pub fn product(m: usize, n: usize, cols: usize, kn: usize, a: Left, b: &[f32], c: &mut [f32], add: bool) {
        let mut i = 0;
        while i + 4 <= m {
            for j in (0..cols).step_by(LANES) {
                tile::<4, 1>(i, j, n, kn, a, b, c, add);
            }
            i += 4;
        }
        while i < m {
            // One row has as many chains of additions as columns: take many, so that they overlap.
            let wide = cols / (WIDE * LANES) * WIDE * LANES;
            for j in (0..wide).step_by(WIDE * LANES) {
                tile::<1, WIDE>(i, j, n, kn, a, b, c, add);
            }
            for j in (wide..cols).step_by(LANES) {
                tile::<1, 1>(i, j, n, kn, a, b, c, add);
            }
            i += 1;
        }
    }
}

/// M rows from i and V vectors of columns from j.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn tile<const M: usize, const V: usize>(
    i: usize,
    j: usize,
    n: usize,
    kn: usize,
    a: Left,
    b: &[f32],
    c: &mut [f32],
    add: bool,
) {
    let mut sums = [[[0f32; LANES]; V]; M];
    for k in 0..kn {
        let b = &b[k * n + j..][..V * LANES];
        for r in 0..M {
            let x = a.data[(i + r) * a.outer + k * a.inner];
            for v in 0..V {
                for l in 0..LANES {
                    sums[r][v][l] = x.mul_add(b[v * LANES + l], sums[r][v][l]);
                }
            }
        }
    }
    for r in 0..M {
        let c = &mut c[(i + r) * n + j..][..V * LANES];
        for (c, s) in c.iter_mut().zip(sums[r].as_flattened()) {
            *c = if add { *c + s } else { *s };
        }
    }
}
