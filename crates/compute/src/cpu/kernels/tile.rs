//! The small products of attention, on tiles of queries and keys in scratch memory. What the mask hides from all rows
//! of a panel is left out, so that causal attention costs half of the square.
//!
//! An element is one chain of fused multiply-adds over k, however the rows are cut into panels.

use std::array::from_fn;
use std::ops::Range;

use super::segments::{Mask, Queries};
use crate::call::Heads;
use crate::cpu::memory::Rows;
use crate::isa::isa_fn;

/// Rows of a tile of queries at most, if a query has not more heads than that.
pub const ROWS: usize = 96;
/// Keys of a tile; a KV block is one.
pub const KEYS: usize = crate::call::KV_BLOCK;
/// Columns of a vector: one AVX-512 register or two of AVX2.
const LANES: usize = 16;
/// Rows of a panel: with one vector of columns their sums fill twelve of the sixteen AVX2 registers.
const PANEL: usize = 6;

/// Width of a head in scratch: whole vectors, zeros at the end.
pub fn padded(width: usize) -> usize {
    width.next_multiple_of(LANES)
}

/// The rows of a tile of queries times `scale`, as [rows, padded(width)].
pub fn load_queries(x: Rows<f32>, t: Queries, heads: Heads, scale: f32, dst: &mut [f32]) {
    let mut dst = dst.chunks_exact_mut(padded(heads.width));
    for row in t.batch_rows() {
        for (src, dst) in x.row(row)[t.cols(heads)].chunks_exact(heads.width).zip(&mut dst) {
            copy(src, scale, dst);
        }
    }
}

/// Rows first .. first + n, columns col .. col + width, times `scale`, as [n, padded(width)].
pub fn load(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, scale: f32, dst: &mut [f32]) {
    for (i, dst) in dst.chunks_exact_mut(padded(width)).take(n).enumerate() {
        copy(&x.row(first + i)[col..col + width], scale, dst);
    }
}

fn copy(src: &[f32], scale: f32, dst: &mut [f32]) {
    let (dst, beyond) = dst.split_at_mut(src.len());
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s * scale;
    }
    beyond.fill(0.0);
}

/// Rows first .. first + n, columns col .. col + width, transposed to [width, KEYS] with zeros beyond n.
pub fn load_transposed(x: Rows<f32>, first: usize, n: usize, col: usize, width: usize, dst: &mut [f32]) {
    const SIDE: usize = 8;
    const ZEROS: [f32; SIDE] = [0.0; SIDE];
    let whole = width / SIDE * SIDE;
    for j in (0..KEYS).step_by(SIDE) {
        let row = |i: usize| if j + i < n { Some(&x.row(first + j + i)[col..col + width]) } else { None };
        let rows: [Option<&[f32]>; SIDE] = from_fn(row);
        // Squares, so that loads and stores are whole vectors.
        for e in (0..whole).step_by(SIDE) {
            let square: [&[f32]; SIDE] = rows.map(|r| r.map_or(&ZEROS[..], |r| &r[e..e + SIDE]));
            for (b, dst) in dst[e * KEYS..].chunks_exact_mut(KEYS).take(SIDE).enumerate() {
                dst[j..j + SIDE].copy_from_slice(&square.map(|s| s[b]));
            }
        }
        for e in whole..width {
            dst[e * KEYS + j..][..SIDE].copy_from_slice(&rows.map(|r| r.map_or(0.0, |r| r[e])));
        }
    }
}

isa_fn! {
    /// c[r][j] = sum over e of a[r][e] b[e][j] for the keys j that row r sees; others hold anything.
    /// a [m, padded(width)], b [width, KEYS].
    pub fn scores(m: usize, width: usize, a: &[f32], b: &[f32], c: &mut [[f32; KEYS]], mask: Mask) {
        let need = |last: usize| (padded(mask.keys(last)), 0..width);
        let b = Matrix { data: b, stride: KEYS };
        let a = ByRow(Matrix { data: a, stride: padded(width) });
        product(m, a, b, c.as_flattened_mut(), KEYS, Store::Replace, |rows| need(rows.end - 1));
    }
}

isa_fn! {
    /// c[r] = c[r] + sum over the keys j that row r sees of a[r][j] b[j]; a is 0 elsewhere.
    /// a [m, KEYS], b [KEYS, stride] of which `wide` columns count, c [m, wide].
    pub fn weigh(m: usize, a: &[[f32; KEYS]], b: &[f32], wide: usize, c: &mut [f32], mask: Mask, store: Store) {
        let a = ByRow(Matrix { data: a.as_flattened(), stride: KEYS });
        let b = Matrix { data: b, stride: wide };
        product(m, a, b, c, wide, store, |rows| (wide, 0..mask.keys(rows.end - 1)));
    }
}

isa_fn! {
    /// c[j] = c[j] + sum over the rows r < m that see key j of a[r][j] b[r], for j < n; a is 0 elsewhere.
    /// a [m, KEYS], b [m, wide], c [n, wide].
    pub fn gather(n: usize, m: usize, a: &[[f32; KEYS]], b: &[f32], wide: usize, c: &mut [f32], mask: Mask) {
        let b = Matrix { data: b, stride: wide };
        let need = |j: usize| (wide, mask.first_row(j).min(m)..m);
        product(n, ByColumn(a), b, c, wide, Store::Add, |keys| need(keys.start));
    }
}

/// What becomes of the old content of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Replace,
    Add,
}

/// Row r begins at r * stride.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    data: &'a [f32],
    stride: usize,
}

/// The left operand of a product.
trait Left: Copy {
    /// The elements of rows i .. i + M at each of `ks`, counted from its start.
    fn panel<const M: usize>(self, i: usize, ks: Range<usize>) -> impl Fn(usize) -> [f32; M];
}

/// A left operand as it is.
#[derive(Clone, Copy)]
struct ByRow<'a>(Matrix<'a>);

impl Left for ByRow<'_> {
    #[inline(always)]
    fn panel<const M: usize>(self, i: usize, ks: Range<usize>) -> impl Fn(usize) -> [f32; M] {
        let rows: [&[f32]; M] = from_fn(|r| &self.0.data[(i + r) * self.0.stride..][ks.clone()]);
        #[inline(always)]
        move |k| from_fn(|r| rows[r][k])
    }
}

/// A left operand that lies transposed.
#[derive(Clone, Copy)]
struct ByColumn<'a>(&'a [[f32; KEYS]]);

impl Left for ByColumn<'_> {
    #[inline(always)]
    fn panel<const M: usize>(self, i: usize, ks: Range<usize>) -> impl Fn(usize) -> [f32; M] {
        let columns = &self.0[ks];
        assert!(i + M <= KEYS);
        #[inline(always)]
        move |k| from_fn(|r| columns[k][i + r])
    }
}

/// c (+)= a b for m rows, panel by panel; `need` says how many columns of c a panel's rows need, and which k.
#[inline(always)]
fn product(
    m: usize,
    a: impl Left,
    b: Matrix,
    c: &mut [f32],
    c_stride: usize,
    store: Store,
    need: impl Fn(Range<usize>) -> (usize, Range<usize>),
) {
    for i in (0..m).step_by(PANEL) {
        let rows = i..m.min(i + PANEL);
        let (cols, ks) = need(rows.clone());
        let c = &mut c[i * c_stride..];
        // Fewer rows take more columns together: enough chains of additions to overlap.
        match rows.len() {
            6 => panel::<6, 1>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
            5 => panel::<5, 1>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
            4 => panel::<4, 1>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
            3 => panel::<3, 2>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
            2 => panel::<2, 2>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
            _ => panel::<1, 4>(a.panel(i, ks.clone()), ks, b, c, c_stride, cols, store),
        }
    }
}

/// M rows of c: V vectors of columns together, the rest one by one.
#[inline(always)]
fn panel<const M: usize, const V: usize>(
    a: impl Fn(usize) -> [f32; M],
    ks: Range<usize>,
    b: Matrix,
    c: &mut [f32],
    c_stride: usize,
    cols: usize,
    store: Store,
) {
    let b = Matrix { data: &b.data[ks.start * b.stride..], ..b };
    let together = cols / (V * LANES) * V * LANES;
    for j in (0..together).step_by(V * LANES) {
        tile::<M, V>(&a, ks.len(), b, j, c, c_stride, store);
    }
    for j in (together..cols).step_by(LANES) {
        tile::<M, 1>(&a, ks.len(), b, j, c, c_stride, store);
    }
}

/// M rows of c and V vectors of columns from j.
#[inline(always)]
fn tile<const M: usize, const V: usize>(
    a: &impl Fn(usize) -> [f32; M],
    kn: usize,
    b: Matrix,
    j: usize,
    c: &mut [f32],
    c_stride: usize,
    store: Store,
) {
    let mut sums = [[[0f32; LANES]; V]; M];
    for k in 0..kn {
        let b = &b.data[k * b.stride + j..][..V * LANES];
        let a = a(k);
        for r in 0..M {
            for v in 0..V {
                for l in 0..LANES {
                    sums[r][v][l] = a[r].mul_add(b[v * LANES + l], sums[r][v][l]);
                }
            }
        }
    }
    for r in 0..M {
        let c = &mut c[r * c_stride + j..][..V * LANES];
        for (c, s) in c.iter_mut().zip(sums[r].as_flattened()) {
            *c = if store == Store::Add { *c + s } else { *s };
        }
    }
}
