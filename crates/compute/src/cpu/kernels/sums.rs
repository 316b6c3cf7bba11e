//! Partial sums in double precision.

use crate::call::{SUM_BLOCK, SumSquares};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn sum_squares(cx: &mut Cx, c: &SumSquares) {
    let x = cx.memory.rows::<f32>(&c.x).vector();
    let out = cx.memory.rows_mut::<f64>(&c.out);
    let isa = cx.isa;
    assert_eq!(out.cols(), x.len().div_ceil(SUM_BLOCK));
    cx.by_blocks(out.cols(), SUM_BLOCK, |blocks, _| {
        // SAFETY: tasks own disjoint elements.
        let mut part = unsafe { out.part(0..1, blocks.clone()) };
        for (o, block) in part.row(0).iter_mut().zip(x.chunks(SUM_BLOCK).skip(blocks.start)) {
            *o = squares(isa, block);
        }
    });
}

isa_fn! {
    fn squares(x: &[f32]) -> f64 {
        const LANES: usize = 16;
        let mut sums = [0f64; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for l in 0..LANES {
                sums[l] += f64::from(chunk[l]) * f64::from(chunk[l]);
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>()
    }
}
