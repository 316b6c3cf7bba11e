//! The tile that every product of floats is made of: M rows times V vectors of columns in registers, one chain of fused
//! multiply-adds over k for each element.

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

/// sums[i][v][l] = sum over k of a[i][k] b[k][v * LANES + l].
///
/// # Safety
/// M rows of a and V vectors of b have n elements along k.
#[inline(always)]
pub unsafe fn tile<const V: usize, const M: usize>(n: usize, a: Side, b: Side) -> [[[f32; LANES]; V]; M] {
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
