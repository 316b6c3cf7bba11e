//! The small products of attention, on tiles of queries and keys in scratch memory. What the mask hides from all rows
//! of a panel is left out, so that causal attention costs half of the square.
//!
//! An element is one chain of fused multiply-adds over k, however the rows are cut into panels.

use std::ops::Range;

use super::segments::{Mask, Queries};
use crate::call::{Heads, Store};
use crate::cpu::fma::{self, LANES, Rectangle, Side};
use crate::cpu::memory::Rows;
use crate::cpu::transpose::transpose;
use crate::isa::isa_fn;

/// Rows of a tile of queries at most, if a query has not more heads than that.
pub const ROWS: usize = 96;
/// Keys of a tile; a KV block is one.
pub const KEYS: usize = crate::call::KV_BLOCK;
/// Rows of a panel: with one vector of columns their sums fill twelve of the sixteen AVX2 registers.
const PANEL: usize = 6;

/// Width of a head in scratch: whole vectors, zeros at the end.
pub fn padded(width: usize) -> usize {
    width.next_multiple_of(LANES)
}

isa_fn! {
    /// The rows of a tile of queries times `scale`, as [rows, padded(width)].
    pub fn load_queries(x: Rows<f32>, t: Queries, heads: Heads, scale: f32, dst: &mut [f32]) {
        let mut dst = dst.chunks_exact_mut(padded(heads.width));
        for row in t.batch_rows() {
            for (src, dst) in x.row(row)[t.cols(heads)].chunks_exact(heads.width).zip(&mut dst) {
                copy(src, scale, dst);
            }
        }
    }
}

isa_fn! {
    /// Rows first .. first + n, columns col .. col + width, times `scale`, as [n, padded(width)].
    pub fn load(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, scale: f32, dst: &mut [f32]) {
        for (i, dst) in dst.chunks_exact_mut(padded(width)).take(n).enumerate() {
            copy(&x.row(first + i)[col..col + width], scale, dst);
        }
    }
}

#[inline(always)]
fn copy(src: &[f32], scale: f32, dst: &mut [f32]) {
    let (dst, beyond) = dst.split_at_mut(src.len());
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s * scale;
    }
    beyond.fill(0.0);
}

/// Rows first .. first + n, columns col .. col + width, transposed to [width, KEYS] with zeros beyond n.
pub fn load_transposed(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, dst: &mut [f32]) {
    let (rows, stride) = x.from(first, n);
    transpose(&rows[col.min(rows.len())..], stride, n, width, KEYS, dst);
}

isa_fn! {
    /// c[r][j] = sum over e of a[r][e] b[e][j] for the keys j that row r sees; others hold anything.
    /// a [m, padded(width)], b [width, KEYS].
    pub fn scores(m: usize, width: usize, a: &[f32], b: &[f32], c: &mut [[f32; KEYS]], mask: Mask) {
        let a = Left { data: a, outer: padded(width), inner: 1 };
        let c = Matrix { data: c.as_flattened_mut(), stride: KEYS };
        product::<WIDE>(m, a, Matrix { data: b, stride: KEYS }, c, Store::Replace, |rows| {
            (padded(mask.keys(rows.end - 1)), 0..width)
        });
    }
}

isa_fn! {
    /// c[r] (+)= sum over the keys j that row r sees of a[r][j] b[j]; a is 0 at the others.
    /// a [m, KEYS], b [KEYS, wide], c [m, wide].
    pub fn weigh(m: usize, a: &[[f32; KEYS]], b: &[f32], wide: usize, c: &mut [f32], mask: Mask, store: Store) {
        let a = Left { data: a.as_flattened(), outer: KEYS, inner: 1 };
        let (b, c) = (Matrix { data: b, stride: wide }, Matrix { data: c, stride: wide });
        product::<WIDE>(m, a, b, c, store, |rows| (wide, 0..mask.keys(rows.end - 1)));
    }
}

isa_fn! {
    /// c[j] += sum over the rows r < m that see key j of a[r][j] b[r], for j < n; a is 0 at the others.
    /// a [m, KEYS], b [m, wide], c [n, wide].
    pub fn gather(n: usize, m: usize, a: &[[f32; KEYS]], b: &[f32], wide: usize, c: &mut [f32], mask: Mask) {
        let a = Left { data: a.as_flattened(), outer: 1, inner: KEYS };
        let (b, c) = (Matrix { data: b, stride: wide }, Matrix { data: c, stride: wide });
        product::<WIDE>(n, a, b, c, Store::Accumulate, |keys| (wide, mask.first_row(keys.start).min(m)..m));
    }
}

/// The left operand of a product: element (i, k) lies at i * outer + k * inner.
#[derive(Clone, Copy)]
struct Left<'a> {
    data: &'a [f32],
    outer: usize,
    inner: usize,
}

/// Row i begins at i * stride.
struct Matrix<T> {
    data: T,
    stride: usize,
}

/// c (+)= a b for m rows, panel by panel; `need` says how many columns of c a panel's rows need, and which k. Rows that
/// need nothing stay as they are.
#[inline(always)]
fn product<const WIDE: bool>(
    m: usize,
    a: Left,
    b: Matrix<&[f32]>,
    c: Matrix<&mut [f32]>,
    store: Store,
    need: impl Fn(Range<usize>) -> (usize, Range<usize>),
) {
    for i in (0..m).step_by(PANEL) {
        let rows = i..m.min(i + PANEL);
        let (cols, ks) = need(rows.clone());
        if cols == 0 || ks.is_empty() {
            continue;
        }
        let a = Left { data: &a.data[i * a.outer + ks.start * a.inner..], ..a };
        let b = Matrix { data: &b.data[ks.start * b.stride..], ..b };
        let c = Matrix { data: &mut c.data[i * c.stride..], stride: c.stride };
        // As many vectors of columns together as leave room in the registers; few rows need many for chains that overlap.
        match (WIDE, rows.len()) {
            (true, 6) => panel::<true, 6, 4>(ks.len(), cols, a, b, c, store),
            (true, 3) => panel::<true, 3, 4>(ks.len(), cols, a, b, c, store),
            (_, 6) => panel::<WIDE, 6, 1>(ks.len(), cols, a, b, c, store),
            (_, 5) => panel::<WIDE, 5, 1>(ks.len(), cols, a, b, c, store),
            (_, 4) => panel::<WIDE, 4, 1>(ks.len(), cols, a, b, c, store),
            (_, 3) => panel::<WIDE, 3, 2>(ks.len(), cols, a, b, c, store),
            (_, 2) => panel::<WIDE, 2, 2>(ks.len(), cols, a, b, c, store),
            _ => panel::<WIDE, 1, 4>(ks.len(), cols, a, b, c, store),
        }
    }
}

/// M rows of c: V vectors of columns together, then two, then one.
#[inline(always)]
fn panel<const WIDE: bool, const M: usize, const V: usize>(
    kn: usize,
    cols: usize,
    a: Left,
    b: Matrix<&[f32]>,
    mut c: Matrix<&mut [f32]>,
    store: Store,
) {
    let mut j = 0;
    while j + V * LANES <= cols {
        columns::<WIDE, M, V>(kn, j, a, &b, &mut c, store);
        j += V * LANES;
    }
    if V > 2 && j + 2 * LANES <= cols {
        columns::<WIDE, M, 2>(kn, j, a, &b, &mut c, store);
        j += 2 * LANES;
    }
    while j < cols {
        columns::<WIDE, M, 1>(kn, j, a, &b, &mut c, store);
        j += LANES;
    }
}

/// M rows and V vectors of columns from `j`.
#[inline(always)]
fn columns<const WIDE: bool, const M: usize, const V: usize>(
    kn: usize,
    j: usize,
    a: Left,
    b: &Matrix<&[f32]>,
    c: &mut Matrix<&mut [f32]>,
    store: Store,
) {
    let (b_data, c_data) = (&b.data[j..], &mut c.data[j..]);
    assert!((M - 1) * a.outer + (kn - 1) * a.inner < a.data.len());
    assert!((kn - 1) * b.stride + V * LANES <= b_data.len());
    assert!((M - 1) * c.stride + V * LANES <= c_data.len());
    let a = Side { p: a.data.as_ptr(), outer: a.outer, k: a.inner };
    let b = Side { p: b_data.as_ptr(), outer: 1, k: b.stride };
    let c = Rectangle { p: c_data.as_mut_ptr(), row: c.stride, col: 1, m: M, n: V * LANES };
    // SAFETY: k is at most kn - 1, for which the assertions hold; a path that is wide has AVX-512. Checks in the loop
    // would cost as much as the products.
    unsafe { fma::tile::<WIDE, V, M>(kn, a, b, c, store) }
}
