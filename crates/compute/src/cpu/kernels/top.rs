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
            select(logits, ids.row(i), logprobs.row(i));
            let (max, ln_sum) = log_sum_exp(isa, logits);
            // (l - max) first: the two large numbers cancel exactly.
            logprobs.row(i).iter_mut().for_each(|l| *l = (*l - max) - ln_sum);
        }
    });
}

/// Insertion into a sorted list of k: after the first rows almost every column fails the first comparison.
fn select(logits: &[f32], ids: &mut [u32], values: &mut [f32]) {
    let k = ids.len();
    values.fill(f32::NEG_INFINITY);
    ids.fill(0);
    for (id, &x) in logits.iter().enumerate() {
        if x > values[k - 1] {
            let at = values.partition_point(|v| *v >= x);
            values.copy_within(at..k - 1, at + 1);
            ids.copy_within(at..k - 1, at + 1);
            (values[at], ids[at]) = (x, id as u32);
        }
    }
}

isa_fn! {
    /// The largest element, and the log of the sum of exp(x - largest).
    fn log_sum_exp(x: &[f32]) -> (f32, f32) {
        let max = lanes::max(x);
        (max, ln(lanes::long_sum(x.len(), |i| exp(x[i] - max))) as f32)
    }
}
