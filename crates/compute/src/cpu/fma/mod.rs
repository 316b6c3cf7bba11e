//! The tile that every product of floats is made of: M rows times V vectors of columns in registers, one chain of fused
//! multiply-adds over k for each element.

#[cfg(target_arch = "x86_64")]
pub mod wide;

use crate::call::Store;

/// Elements of a vector of sums: one AVX-512 register, two of AVX2, four of NEON.
pub const LANES: usize = 16;

/// Where an operand's elements lie.
#[derive(Clone, Copy)]
pub struct Side {
    pub p: *const f32,
    /// Elements from one row of a to the next; those of b are neighbours.
    pub outer: usize,
    /// Elements from one k to the next.
    pub k: usize,
}

/// A rectangle of c: m x n elements, `row` and `col` elements apart.
#[derive(Clone, Copy)]
pub struct Rectangle {
    pub p: *mut f32,
    pub row: usize,
    pub col: usize,
    pub m: usize,
    pub n: usize,
}

impl Rectangle {
    /// Up to m x n elements from (i, j).
    ///
    /// # Safety
    /// (i, j) lies inside.
    #[inline(always)]
    pub unsafe fn tile(self, i: usize, j: usize, m: usize, n: usize) -> Rectangle {
        // SAFETY: the caller's promise.
        let p = unsafe { self.p.add(i * self.row + j * self.col) };
        Rectangle { p, m: m.min(self.m - i), n: n.min(self.n - j), ..self }
    }

    /// Asks for the rows of c while their sums are computed: in large products they are not in the cache.
    #[inline(always)]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for i in 0..self.m {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for j in (0..self.n).step_by(LANES) {
                // SAFETY: a prefetch reads nothing, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.p.wrapping_add(i * self.row + j).cast()) }
            }
        }
    }

    /// # Safety
    /// The rectangle is written by nobody else.
    #[inline(always)]
    unsafe fn write<const V: usize, const MR: usize>(
        self,
        sums: &[[[f32; LANES]; V]; MR],
        scale: f32,
        store: Store,
    ) {
        for (i, sums) in sums.iter().enumerate().take(self.m) {
            let sums = sums.as_flattened();
            if self.col == 1 {
                // SAFETY: row i has n elements.
                let row = unsafe { std::slice::from_raw_parts_mut(self.p.add(i * self.row), self.n) };
                write_row(row, sums, scale, store);
            } else {
                for (j, sum) in sums.iter().enumerate().take(self.n) {
                    // SAFETY: (i, j) lies inside.
                    let c = unsafe { &mut *self.p.add(i * self.row + j * self.col) };
                    write_row(std::slice::from_mut(c), std::slice::from_ref(sum), scale, store);
                }
            }
        }
    }
}

#[inline(always)]
fn write_row(row: &mut [f32], sums: &[f32], scale: f32, store: Store) {
    match store {
        Store::Replace => row.iter_mut().zip(sums).for_each(|(c, s)| *c = scale * s),
        Store::Accumulate => row.iter_mut().zip(sums).for_each(|(c, s)| *c += scale * s),
    }
}

/// c (+)= scale * a b for one tile, in plain code: c[i][j] = sum over k of a[i][k] b[k][j].
///
/// # Safety
/// M rows of a and V vectors of b have `words` elements along k, and nobody else writes the rectangle.
#[inline(always)]
pub unsafe fn plain<const V: usize, const M: usize>(
    words: usize,
    a: Side,
    b: Side,
    c: Rectangle,
    scale: f32,
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums: [[[f32; LANES]; V]; M] = sums(words, a, b);
        c.write(&sums, scale, store);
    }
}

/// The same, with AVX-512 where `WIDE`, which holds twice as many sums.
///
/// # Safety
/// As [`plain`]; with `WIDE` the machine has AVX-512.
#[inline(always)]
pub unsafe fn tile<const WIDE: bool, const V: usize, const M: usize>(
    words: usize,
    a: Side,
    b: Side,
    c: Rectangle,
    store: Store,
) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if WIDE {
            return wide::floats::<V, M>(words, a, b, c, 1.0, store);
        }
        plain::<V, M>(words, a, b, c, 1.0, store);
    }
}

/// sums[i][v][l] = sum over k of a[i][k] b[k][v * LANES + l].
///
/// # Safety
/// M rows of a and V vectors of b have n elements along k.
#[inline(always)]
unsafe fn sums<const V: usize, const M: usize>(n: usize, a: Side, b: Side) -> [[[f32; LANES]; V]; M] {
    let mut sums = [[[0f32; LANES]; V]; M];
    let (mut a_p, mut b_p) = (a.p, b.p);
    for _ in 0..n {
        // SAFETY: the caller's promise.
        let b_row = unsafe { &*b_p.cast::<[[f32; LANES]; V]>() };
        for i in 0..M {
            // SAFETY: as above.
            let x = unsafe { *a_p.add(i * a.outer) };
            for v in 0..V {
                for l in 0..LANES {
                    sums[i][v][l] = x.mul_add(b_row[v][l], sums[i][v][l]);
                }
            }
        }
        (a_p, b_p) = (a_p.wrapping_add(a.k), b_p.wrapping_add(b.k));
    }
    sums
}
