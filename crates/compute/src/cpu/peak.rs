//! What this machine can do at most, for comparison: multiply-adds that stay in registers, and reading memory.
//!
//! The caller takes the time; a run says how much it did.

use std::hint::black_box;

use planish_base::{Result, TypeId};

use super::CpuBackend;
use crate::backend::Backend;
use crate::call::Zero;
use crate::isa::{Isa, isa_fn};
use crate::view::View;

/// Lanes of a chain: two vectors of AVX2, or one of twice the width.
const LANES: usize = 16;
/// Chains where 16 registers hold 8 lanes each: enough to hide the latency of a multiply-add, few enough to stay there.
const NARROW: usize = 6;
/// Chains where 32 registers hold 16 lanes each.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 24;

impl CpuBackend {
    /// Runs chains of fused multiply-adds that touch no memory on every worker, `rounds` for each chain, and returns
    /// how many floating-point operations that were: two for a multiply-add.
    pub fn multiply_adds(&mut self, rounds: usize) -> u64 {
        let (isa, threads) = (self.isa, self.pool.threads());
        #[cfg(target_arch = "x86_64")]
        if isa >= Isa::Avx512 {
            // SAFETY: a backend with this path exists only where the machine has AVX-512.
            self.pool.run(threads, &|_, _| unsafe { wide(rounds) });
            return (2 * LANES * WIDE * rounds * threads) as u64;
        }
        self.pool.run(threads, &|_, _| narrow(isa, rounds));
        (2 * LANES * NARROW * rounds * threads) as u64
    }

    /// Memory for [`CpuBackend::read`], every page of it touched. Give it back with [`Backend::free`].
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn readable(&mut self, bytes: u64) -> Result<View> {
        let n = bytes as usize / 4;
        let view = View::new(self.alloc(bytes)?, 0, 1, n, TypeId::F32);
        self.exec(&Zero { x: view }.into());
        Ok(view)
    }

    /// Reads every element of a vector once, shared among the workers, and returns how many bytes that were.
    pub fn read(&mut self, x: &View) -> u64 {
        let (isa, n) = (self.isa, self.pool.threads());
        let values = self.memory.rows::<f32>(x).vector();
        let part = values.len().div_ceil(n).max(1);
        self.pool.run(n, &|task, _| {
            if let Some(values) = values.chunks(part).nth(task) {
                black_box(sum(isa, values));
            }
        });
        x.span()
    }
}

isa_fn! {
    fn narrow(rounds: usize) {
        // The compiler must not know the numbers, nor that chains are alike.
        let mut sums = black_box([[1f32; LANES]; NARROW]);
        let [factor, term] = black_box([0.5f32, 1.0]).map(|v| [v; LANES]);
        for _ in 0..rounds {
            for sum in &mut sums {
                for j in 0..LANES {
                    sum[j] = sum[j].mul_add(factor[j], term[j]);
                }
            }
        }
        black_box(sums);
    }
}

/// In intrinsics, since loops over so many chains become code that gathers and scatters.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn wide(rounds: usize) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps};
    let mut sums = black_box([_mm512_set1_ps(1.0); WIDE]);
    let [factor, term] = black_box([0.5, 1.0]).map(|v| _mm512_set1_ps(v));
    for _ in 0..rounds {
        for i in 0..WIDE {
            sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
        }
    }
    black_box(sums);
}

isa_fn! {
    fn sum(values: &[f32]) -> f32 {
        let mut sums = [[0f32; LANES]; 4];
        for block in values.as_chunks::<LANES>().0.as_chunks::<4>().0 {
            for (sum, lanes) in sums.iter_mut().zip(block) {
                for j in 0..LANES {
                    sum[j] += lanes[j];
                }
            }
        }
        sums.iter().flatten().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_for_every_worker() {
        for threads in [1, 3] {
            let mut backend = CpuBackend::new(Isa::detect(), threads).unwrap();
            let n = threads as u64;
            let lanes = if Isa::detect() >= Isa::Avx512 { 384 } else { 96 };
            assert_eq!(backend.multiply_adds(10), n * 10 * lanes * 2);
            let view = backend.readable(4 * 1001).unwrap();
            assert_eq!(backend.read(&view), 4 * 1001);
        }
    }

    #[test]
    fn sums_are_of_all_whole_blocks() {
        let values: Vec<f32> = (0..192).map(|i| i as f32).collect();
        // 0 + 1 + .. + 127 and + 191: exact in f32.
        for isa in [Isa::Scalar, Isa::detect()] {
            assert_eq!(sum(isa, &values[..130]), 8128.0);
            assert_eq!(sum(isa, &values), 18336.0);
        }
    }
}
