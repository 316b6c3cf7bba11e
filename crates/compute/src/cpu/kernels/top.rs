//! The most probable columns of rows of logits.

use planish_base::math::{exp, ln};

use super::lanes;
use crate::call::TopK;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn top_k(cx: &mut Cx, c: &TopK) {
    let logits = cx.memory.rows::<f32>(&c.logits);
    let (ids, logprobs) = (cx.memory.rows_mut::<u32>(&c.ids), cx.memory.rows_mut::<f32>(&c.logprobs));
    let isa = cx.isa;
    cx.by_blocks(logits.len(), logits.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut ids = unsafe { ids.part(rows.clone(), 0..ids.cols()) };
        // SAFETY: as above.
        let mut logprobs = unsafe { logprobs.part(rows.clone(), 0..logprobs.cols()) };
        for (i, r) in rows.enumerate() {
            let logits = logits.row(r);
            select(isa, logits, ids.row(i), logprobs.row(i));
            let max = logprobs.row(i)[0];
            let ln_sum = ln_sum_exp(isa, logits, max);
            // (l - max) first: the two large numbers cancel exactly.
            logprobs.row(i).iter_mut().for_each(|l| *l = (*l - max) - ln_sum);
        }
    });
}

isa_fn! {
    /// Insertion into a sorted list of k: after the first rows almost no chunk has an element above the last of them.
    fn select(logits: &[f32], ids: &mut [u32], values: &mut [f32]) {
        const CHUNK: usize = 64;
        let k = ids.len();
        values.fill(f32::NEG_INFINITY);
        ids.fill(0);
        for (chunk, start) in logits.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
            if lanes::max(chunk) <= values[k - 1] {
                continue;
            }
            for (&x, id) in chunk.iter().zip(start..) {
                if x > values[k - 1] {
                    let at = values.partition_point(|v| *v >= x);
                    values.copy_within(at..k - 1, at + 1);
                    ids.copy_within(at..k - 1, at + 1);
                    (values[at], ids[at]) = (x, id);
                }
            }
        }
    }
}

isa_fn! {
    /// The log of the sum of exp(x - max).
    fn ln_sum_exp(x: &[f32], max: f32) -> f32 {
        ln(lanes::long_sum([x], |[x]| exp(x - max))) as f32
    }
}
