//! GFLOP/s of matrix products.
#![allow(clippy::print_stdout, clippy::unwrap_used)]
use std::time::Instant;

use planish_base::TypeId;
use planish_compute::call::*;
use planish_compute::{Backend, CpuBackend, Isa, View};

fn view(b: &mut CpuBackend, rows: usize, cols: usize, dtype: TypeId) -> View {
    let v = View::new(b.alloc(0).unwrap(), 0, rows, cols, dtype);
    let home = b.alloc(v.span()).unwrap();
    let v = View { home, ..v };
    if dtype == TypeId::F32 {
        b.upload_f32(&v, &(0..rows * cols).map(|i| (i % 97) as f32 * 0.01 - 0.4).collect::<Vec<_>>());
    }
    v
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let copies: usize = std::env::args().nth(2).and_then(|a| a.parse().ok()).unwrap_or(1);
    let pad: usize = std::env::args().nth(3).and_then(|a| a.parse().ok()).unwrap_or(0);
    let mut b = CpuBackend::new(Isa::detect(), threads).unwrap();
    let (k, o) = (Along::K, Along::Outer);
    let q = TypeId::Q4_1;
    let f = TypeId::F32;
    let shapes = [
        (512, 576, 576, k, k, q),
        (512, 576, 1536, k, k, q),
        (512, 1536, 576, k, k, q),
        (512, 576, 576, k, o, q),
        (512, 1536, 576, k, o, q),
        (512, 576, 1536, k, o, q),
        (512, 576, 576, k, k, f),
        (512, 576, 1536, k, k, f),
        (512, 576, 1536, k, o, f),
        (576, 512, 576, o, o, f),
        (1536, 512, 576, o, o, f),
        (512, 2048, 2048, k, k, f),
        (512, 2048, 2048, k, o, f),
        (512, 576, 16, k, k, f),
        (512, 16, 576, k, k, f),
        (512, 16, 1536, k, k, f),
        (1536, 512, 16, o, o, f),
        (576, 512, 16, o, o, f),
        (16, 512, 576, o, o, f),
        (512, 1536, 16, k, o, f),
        (512, 16, 576, k, o, f),
    ];
    for (m, kk, n, aa, ba, t) in shapes {
        let sh = |al, x, y| if al == Along::K { (x, y) } else { (y, x) };
        let (ar, ac) = sh(aa, m, kk);
        let (br, bc) = sh(ba, n, kk);
        let a = view(&mut b, ar, ac, f);
        let w = view(&mut b, br, bc, t);
        let cs: Vec<View> = (0..copies)
            .map(|_| {
                let wide = view(&mut b, m, n + pad, f);
                wide.columns(0, n)
            })
            .collect();
        let call = |c| -> Call {
            MatMul {
                a,
                b: w,
                c,
                a_along: aa,
                b_along: ba,
                scale: 1.0,
                store: Store::Replace,
                product: Product::Packed,
            }
            .into()
        };
        let flop = 2.0 * (m * kk * n) as f64;
        let reps = ((2e9 / flop) as usize).clamp(3, 200).max(2 * copies);
        let mut times = Vec::new();
        for r in 0..reps {
            let call = call(cs[r % copies]);
            let s = Instant::now();
            b.exec(&call);
            times.push(s.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{m:5} {kk:5} {n:5} {aa:?} {ba:?} {}: median {:.1} best {:.1}",
            t.name(),
            flop / times[reps / 2] / 1e9,
            flop / times[0] / 1e9
        );
        for v in [a, w].into_iter().chain(cs) {
            b.free(v.home);
        }
    }
}
