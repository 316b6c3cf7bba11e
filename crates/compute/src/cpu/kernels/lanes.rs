//! Sums in a fixed order that vector code can follow.
//!
//! Their loops are plain: a closure that is not inlined into its kernel, such as one folded by an iterator, is compiled
//! without the instructions of the path, and each of its fused multiply-adds is a call.

const LANES: usize = 16;

/// Sum of f over the elements of N slices of one length, in [`LANES`] partial sums that are added pairwise at the end.
/// Lengths are checked once, since a loop that checks each element is no vector code.
#[inline(always)]
pub fn sum_of<const N: usize>(slices: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let n = slices[0].len();
    let mut sums = [0f32; LANES];
    let parts = slices.map(|x| x[..n].as_chunks::<LANES>());
    for i in 0..n / LANES {
        let chunk = parts.map(|(chunks, _)| chunks[i]);
        for l in 0..LANES {
            sums[l] += f(chunk.map(|x| x[l]));
        }
    }
    for i in 0..n % LANES {
        sums[i] += f(parts.map(|(_, rest)| rest[i]));
    }
    pairwise(sums)
}

#[inline(always)]
fn pairwise(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for l in 0..width {
            sums[l] += sums[l + width];
        }
    }
    sums[0]
}

/// Elements of a row that are added in single precision.
pub const BLOCK: usize = 1024;

/// Sum of f over the elements of N slices of one length: as [`sum_of`] in blocks, which are added in double precision, for
/// rows as long as a vocabulary, where thousands of small terms would be lost against a lane's sum.
#[inline(always)]
pub fn long_sum<const N: usize>(slices: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f64 {
    let n = slices[0].len();
    // Terms are computed before they are added: a loop that does one thing becomes vector code.
    let (mut terms, mut total) = ([0f32; BLOCK], 0f64);
    for start in (0..n).step_by(BLOCK) {
        let terms = &mut terms[..BLOCK.min(n - start)];
        let block = slices.map(|x| &x[start..start + terms.len()]);
        for i in 0..terms.len() {
            terms[i] = f(block.map(|x| x[i]));
        }
        total += f64::from(sum_of([&*terms], |[x]| x));
    }
    total
}

/// The largest element; minus infinity for none.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for c in chunks {
        for l in 0..LANES {
            best[l] = if c[l] > best[l] { c[l] } else { best[l] };
        }
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m })
}
