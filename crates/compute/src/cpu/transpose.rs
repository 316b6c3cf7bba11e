//! Rows to columns: what lies along k in memory becomes panels, keys become columns.
//!
//! No compiler finds the shuffles in loops; it moves one number at a time, which costs as much as an eighth of the product
//! that reads them.

/// Numbers of a square's side.
const SIDE: usize = 4;

/// dst[k * width + i] = src[i * stride + k] for i < n, 0 for n <= i < width, and every k < `words`.
///
/// # Panics
/// When src or dst are too short.
#[inline(always)]
pub fn transpose(src: &[f32], stride: usize, n: usize, words: usize, width: usize, dst: &mut [f32]) {
    let n = n.min(width);
    assert!(n == 0 || (n - 1) * stride + words <= src.len());
    assert!(words * width <= dst.len());
    let (whole_rows, whole_words) = (n / SIDE * SIDE, words / SIDE * SIDE);
    // Four squares side by side fill a cache line of dst.
    for i in (0..whole_rows).step_by(4 * SIDE) {
        for k in (0..whole_words).step_by(SIDE) {
            for i in (i..whole_rows.min(i + 4 * SIDE)).step_by(SIDE) {
                // SAFETY: four rows from i and four words from k are inside, by the assertions.
                unsafe {
                    square(
                        src.as_ptr().add(i * stride + k),
                        stride,
                        dst.as_mut_ptr().add(k * width + i),
                        width,
                    )
                };
            }
        }
    }
    for k in 0..words {
        let first = if k < whole_words { whole_rows } else { 0 };
        let dst = &mut dst[k * width..][..width];
        for i in first..n {
            dst[i] = src[i * stride + k];
        }
        dst[n..].fill(0.0);
    }
}

/// # Safety
/// Four rows of src and of dst, a stride apart, have four numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn square(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    use std::arch::x86_64::{
        _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps, _mm_unpacklo_ps,
    };
    // SAFETY: the caller's promise; every machine of this architecture has these instructions.
    unsafe {
        let row = |i| _mm_loadu_ps(src.add(i * src_stride));
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
        _mm_storeu_ps(dst, _mm_movelh_ps(ab, cd));
        _mm_storeu_ps(dst.add(dst_stride), _mm_movehl_ps(cd, ab));
        _mm_storeu_ps(dst.add(2 * dst_stride), _mm_movelh_ps(ab_high, cd_high));
        _mm_storeu_ps(dst.add(3 * dst_stride), _mm_movehl_ps(cd_high, ab_high));
    }
}

/// # Safety
/// Four rows of src and of dst, a stride apart, have four numbers.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn square(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    for i in 0..SIDE {
        for k in 0..SIDE {
            // SAFETY: the caller's promise.
            unsafe { *dst.add(k * dst_stride + i) = *src.add(i * src_stride + k) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns_at_ragged_shapes() {
        for (n, words, width) in
            [(1, 1, 1), (4, 4, 4), (6, 9, 6), (13, 7, 48), (48, 33, 48), (0, 3, 8), (16, 3, 14)]
        {
            let stride = words + 5;
            let src: Vec<f32> = (0..n * stride).map(|i| i as f32 + 1.0).collect();
            let mut dst = vec![-1.0; words * width];
            transpose(&src, stride, n, words, width, &mut dst);
            for k in 0..words {
                for i in 0..width {
                    let want = if i < n { src[i * stride + k] } else { 0.0 };
                    assert_eq!(dst[k * width + i], want, "{n} x {words} in {width} at ({i}, {k})");
                }
            }
        }
    }
}
