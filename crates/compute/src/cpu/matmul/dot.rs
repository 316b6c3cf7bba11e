//! Products as dot products over the stored rows of b: for a few rows of a, where packing would not pay.

use crate::call::{Along, MatMul, Store};
use crate::cpu::Cx;
use crate::cpu::memory::RowsMut;
use crate::isa::isa_fn;
use crate::quant::Quant;

/// Elements decoded at a time.
const CHUNK: usize = 256;
/// Partial sums of a dot product.
const LANES: usize = 32;

pub fn dot(cx: &mut Cx, call: &MatMul, c: RowsMut<f32>) {
    assert_eq!((call.a_along, call.b_along), (Along::K, Along::K), "dot products run along k");
    let a = cx.memory.rows::<f32>(&call.a);
    let quant = Quant::of(call.b.dtype).expect("the model checks tensor types when it is loaded");
    let (bytes, stride) = (cx.memory.bytes(&call.b), call.b.bytes_of(call.b.stride) as usize);
    let (m, n, k, isa) = (c.len(), c.cols(), call.b.cols, cx.isa);
    // About 64k multiplications a task.
    let block = (65_536 / (k * m).max(1)).clamp(1, n.max(1));
    cx.pool.run(n.div_ceil(block), &|task, scratch| {
        let cols = task * block..((task + 1) * block).min(n);
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { c.part(0..m, cols.clone()) };
        let row = scratch.floats(k.next_multiple_of(CHUNK));
        for (j, col) in cols.enumerate() {
            quant.decode_range(isa, &bytes[col * stride..], 0, &mut row[..k]);
            for i in 0..m {
                let sum = call.scale * product(isa, a.row(i), &row[..k]);
                let c = &mut part.row(i)[j];
                *c = if call.store == Store::Replace { sum } else { *c + sum };
            }
        }
    });
}

isa_fn! {
    /// Sum of a[i] b[i] in LANES partial sums, added pairwise at the end.
    fn product(a: &[f32], b: &[f32]) -> f32 {
        let mut sums = [0f32; LANES];
        let (a_chunks, a_rest) = a.as_chunks::<LANES>();
        let (b_chunks, b_rest) = b.as_chunks::<LANES>();
        for (a, b) in a_chunks.iter().zip(b_chunks) {
            for l in 0..LANES {
                sums[l] = a[l].mul_add(b[l], sums[l]);
            }
        }
        for (l, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
            sums[l] = a.mul_add(*b, sums[l]);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for l in 0..width {
                sums[l] += sums[l + width];
            }
        }
        sums[0]
    }
}
