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
        let below = max - logits[target];
        let mut sum = 0f64;
        for block in logits.chunks_mut(lanes::BLOCK) {
            for x in block.iter_mut() {
                *x = exp(*x - max);
            }
            sum += f64::from(lanes::sum_of([&*block], |[x]| x));
        }
        let factor = (f64::from(normaliser) / sum) as f32;
        logits.iter_mut().for_each(|x| *x *= factor);
        logits[target] -= normaliser;
        // Not the sum's log and the maximum first: the two large numbers of `below` have cancelled exactly.
        below + ln(sum) as f32
    }
}
