//! The best approximation of a matrix by a pair: its largest singular values with their vectors, found by subspace
//! iteration from random directions (Halko, Martinsson and Tropp, 2011).
//!
//! Products with the matrix are the backend's, in single precision on the file's blocks; bases are made orthogonal and
//! the small problem is solved in double precision. What is found need not be exact: training subtracts the very pair
//! that it begins with.

use nalgebra::{DMatrix, SymmetricEigen};
use planish_base::rng::{Purpose, Stream};
use planish_base::{Result, TypeId};
use planish_compute::call::{Along, MatMul, Product, Store};
use planish_compute::{Backend, View};

/// Directions beyond the rank; with these, few iterations find the wanted ones.
const EXTRA: usize = 8;
const ITERATIONS: usize = 8;

/// A [rank, in] and B [out, rank] with scale B A = U S V' of the largest singular values of w [out, in]: B = U sqrt(S /
/// scale), A = sqrt(S / scale) V' (Meng et al., 2024). Values that the matrix does not have are 0.
///
/// # Errors
/// Kind `Resource` without memory.
pub fn pair(
    backend: &mut dyn Backend,
    w: &View,
    rank: usize,
    scale: f32,
    seed: u64,
    tensor: u32,
) -> Result<(Vec<f32>, Vec<f32>)> {
    let (out, input) = (w.rows, w.cols);
    let n = (rank + EXTRA).min(out).min(input);
    let stream = Stream::new(seed, Purpose::Sketch, tensor);
    // Bases are lists of vectors, one after the other.
    let mut right: Vec<f64> = (0..(n * input) as u64).map(|i| stream.normal(i)).collect();
    let mut left = Vec::new();
    for _ in 0..ITERATIONS {
        orthonormalise(&mut right, input);
        left = times(backend, &right, w, Along::K)?;
        orthonormalise(&mut left, out);
        right = times(backend, &left, w, Along::Outer)?;
    }
    // With Q the left basis, Q' W = right: its singular values are those of W, and its left vectors turn Q into U.
    let SymmetricEigen { eigenvalues: squares, eigenvectors: turns } =
        SymmetricEigen::new(gram(&right, input));
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|i, j| squares[*j].total_cmp(&squares[*i]));
    let (mut a, mut b) = (vec![0f32; rank * input], vec![0f32; out * rank]);
    for (k, &i) in order.iter().take(rank).enumerate() {
        let value = squares[i].max(0.0).sqrt();
        let (in_a, in_b) = match value > 0.0 {
            true => (1.0 / (value * f64::from(scale)).sqrt(), (value / f64::from(scale)).sqrt()),
            false => (0.0, 0.0),
        };
        // right' turn = value V, so that dividing by the root of the value leaves the root.
        let turn = |j: usize| turns[(j, i)];
        for c in 0..input {
            a[k * input + c] = ((0..n).map(|j| turn(j) * right[j * input + c]).sum::<f64>() * in_a) as f32;
        }
        for r in 0..out {
            b[r * rank + k] = ((0..n).map(|j| turn(j) * left[j * out + r]).sum::<f64>() * in_b) as f32;
        }
    }
    Ok((a, b))
}

/// x w' for w [out, in] along k, x w along the outer index; x is a list of vectors.
fn times(backend: &mut dyn Backend, x: &[f64], w: &View, along: Along) -> Result<Vec<f64>> {
    let (from, to) = if along == Along::K { (w.cols, w.rows) } else { (w.rows, w.cols) };
    let n = x.len() / from;
    let mut matrix = |cols: usize| -> Result<View> {
        Ok(View::new(backend.alloc((n * cols * 4) as u64)?, 0, n, cols, TypeId::F32))
    };
    let (a, c) = (matrix(from)?, matrix(to)?);
    backend.upload_f32(&a, &x.iter().map(|v| *v as f32).collect::<Vec<_>>());
    let (a_along, store, product) = (Along::K, Store::Replace, Product::Packed);
    backend.exec(&MatMul { a, b: *w, c, a_along, b_along: along, scale: 1.0, store, product }.into());
    let y = backend.download_f32(&c).into_iter().map(f64::from).collect();
    backend.free(a.home);
    backend.free(c.home);
    Ok(y)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Gram and Schmidt, twice: once leaves what rounding left. A vector that depends on those before becomes 0.
fn orthonormalise(basis: &mut [f64], width: usize) {
    for i in 0..basis.len() / width {
        let (before, rest) = basis.split_at_mut(i * width);
        let v = &mut rest[..width];
        let length = dot(v, v).sqrt();
        for _ in 0..2 {
            for u in before.chunks_exact(width) {
                let share = dot(u, v);
                v.iter_mut().zip(u).for_each(|(v, u)| *v -= share * u);
            }
        }
        let left = dot(v, v).sqrt();
        let factor = if left > 1e-6 * length { 1.0 / left } else { 0.0 };
        v.iter_mut().for_each(|v| *v *= factor);
    }
}

/// The products of all pairs of vectors, [n, n].
fn gram(vectors: &[f64], width: usize) -> DMatrix<f64> {
    let (n, vector) = (vectors.len() / width, |i: usize| &vectors[i * width..(i + 1) * width]);
    DMatrix::from_fn(n, n, |i, j| dot(vector(i), vector(j)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed set-up is a failed test
mod tests {
    use planish_compute::{CpuBackend, Isa};

    use super::*;

    /// A matrix made of known singular values and vectors (the cosine basis, which is orthonormal).
    #[test]
    fn the_largest_singular_values_and_their_vectors_are_found() {
        let (out, input, rank, scale) = (48, 40, 4, 0.5f32);
        let cosine = |n: usize, k: usize, i: usize| {
            let norm = if k == 0 { 1.0 } else { 2f64.sqrt() } / (n as f64).sqrt();
            norm * (std::f64::consts::PI * k as f64 * (2 * i + 1) as f64 / (2 * n) as f64).cos()
        };
        let value = |k: usize| 10.0 * 0.8f64.powi(k as i32);
        let element = |r: usize, c: usize, ks: usize| -> f64 {
            (0..ks).map(|k| value(k) * cosine(out, k, r) * cosine(input, k, c)).sum()
        };
        let w: Vec<f32> = (0..out * input).map(|i| element(i / input, i % input, 40) as f32).collect();
        let bits = |threads| {
            let backend = &mut CpuBackend::new(Isa::detect(), threads).unwrap();
            let home = backend.alloc((out * input * 4) as u64).unwrap();
            let view = View::new(home, 0, out, input, TypeId::F32);
            backend.upload_f32(&view, &w);
            pair(backend, &view, rank, scale, 3, 0).unwrap()
        };
        let (a, b) = bits(1);
        assert!((a.clone(), b.clone()) == bits(3), "bits depend on the number of threads");
        for (r, c) in (0..out).flat_map(|r| (0..input).map(move |c| (r, c))) {
            let got: f64 = (0..rank).map(|k| f64::from(b[r * rank + k]) * f64::from(a[k * input + c])).sum();
            let want = element(r, c, rank);
            assert!((f64::from(scale) * got - want).abs() < 2e-4, "({r}, {c}): {got}, {want}");
        }
        // Both halves carry the root of each value.
        for k in 0..rank {
            let norm = (0..input).map(|c| f64::from(a[k * input + c]).powi(2)).sum::<f64>();
            let other = (0..out).map(|r| f64::from(b[r * rank + k]).powi(2)).sum::<f64>();
            let want = value(k) / f64::from(scale);
            assert!(
                (norm / want - 1.0).abs() < 1e-4 && (other / want - 1.0).abs() < 1e-4,
                "{norm} {other} {want}"
            );
        }
    }

    #[test]
    fn a_rank_beyond_the_matrix_is_filled_with_zeros() {
        let backend = &mut CpuBackend::new(Isa::detect(), 1).unwrap();
        let view = View::new(backend.alloc(24).unwrap(), 0, 2, 3, TypeId::F32);
        backend.upload_f32(&view, &[3.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
        let (a, b) = pair(backend, &view, 4, 1.0, 0, 0).unwrap();
        let element = |r: usize, c: usize| (0..4).map(|k| b[r * 4 + k] * a[k * 3 + c]).sum::<f32>();
        for (r, c) in (0..2).flat_map(|r| (0..3).map(move |c| (r, c))) {
            let want = if r != c { 0.0 } else { 3.0 - r as f32 };
            assert!((element(r, c) - want).abs() < 1e-5);
        }
        assert!(a[6..].iter().all(|v| *v == 0.0));
    }
}
