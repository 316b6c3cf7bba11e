//! Cross entropy of rows of logits, which become their own gradient.

use planish_base::math::{exp, ln};

use super::lanes;
use crate::call::CrossEntropy;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn cross_entropy(cx: &mut Cx, c: &CrossEntropy) {
    let targets = cx.memory.rows::<u32>(&c.targets);
    let normaliser = cx.memory.rows::<f32>(&c.normaliser).vector()[0];
    let (logits, loss) = (cx.memory.rows_mut::<f32>(&c.logits), cx.memory.rows_mut::<f32>(&c.loss));
    let isa = cx.isa;
    cx.by_blocks(logits.len(), logits.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut logits = unsafe { logits.part(rows.clone(), 0..logits.cols()) };
        // SAFETY: as above.
        let mut loss = unsafe { loss.part(rows.clone(), 0..1) };
        for (i, r) in rows.enumerate() {
            loss.row(i)[0] = row(isa, logits.row(i), targets.column()[r] as usize, normaliser);
        }
    });
}

isa_fn! {
    fn row(logits: &mut [f32], target: usize, normaliser: f32) -> f32 {
        let max = lanes::max(logits);
        let sum = lanes::long_sum(logits.len(), |i| exp(logits[i] - max));
        let ln_sum = ln(sum) as f32;
        // (max - logit) first: the two large numbers cancel exactly.
        let loss = (max - logits[target]) + ln_sum;
        let factor = (f64::from(normaliser) / sum) as f32;
        for x in logits.iter_mut() {
            *x = exp(*x - max) * factor;
        }
        logits[target] -= normaliser;
        loss
    }
}
