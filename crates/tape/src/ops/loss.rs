//! Linear map to the vocabulary and cross entropy in one, in chunks of trained positions.
//!
//! The loss's normaliser is known before the pass, so a chunk's logits can become their own gradient at once, and
//! neither all logits nor their gradient ever exist together.

use planish_compute::View;
use planish_compute::call::{CrossEntropy, Gather, Scatter, Store};

use super::Example;
use super::linear::{outer, times, times_transposed};
use crate::tape::{Mode, Param, Tape, Var};

/// Rows whose logits exist at one time.
const CHUNK: usize = 256;

/// Which rows are trained, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// [m, 1] rows of x, ascending, no duplicates.
    pub rows: View,
    /// [m, 1] target ids.
    pub ids: View,
    /// [1, 1]: 1 / trained tokens of the whole optimizer step.
    pub normaliser: View,
}

/// The cross entropy of x [n, d] under the head [vocabulary, d] at the trained rows: [m, 1], one loss a row, not
/// normalised. Its backward pass needs no seed: gradients are those of normaliser * sum of the losses.
pub fn linear_cross_entropy(t: &mut Tape, x: Var, head: &Param, p: &Targets) -> Var {
    let (xv, m) = (t.view(x), p.rows.rows);
    let needs = t.needs_grad(x);
    let trained = t.temp(m, xv.cols);
    t.call(Gather { x: xv, rows: p.rows, out: trained });
    let dtrained = needs.then(|| t.temp(m, xv.cols));
    let loss = t.temp(m, 1);
    t.keep(loss);
    for start in (0..m).step_by(CHUNK) {
        let n = CHUNK.min(m - start);
        let h = trained.rows_range(start, n);
        let logits = t.temp(n, head.view.rows);
        times(t, h, head.view, logits, 1.0, Store::Replace);
        let (targets, loss) = (p.ids.rows_range(start, n), loss.rows_range(start, n));
        t.call(CrossEntropy { targets, normaliser: p.normaliser, logits, loss });
        if let Some(d) = dtrained {
            times_transposed(t, logits, head.view, d.rows_range(start, n), 1.0, Store::Replace);
        }
        if let Some(dhead) = head.grad.filter(|_| t.mode() == Mode::Train) {
            outer(t, logits, h, dhead, 1.0);
        }
    }
    let rows = p.rows;
    let y = t.push(loss, needs, move |t, _| {
        let dy = dtrained.expect("a value that needs a gradient has one");
        let (dx, store) = t.grad_into(x);
        assert!(store == Store::Replace, "the last hidden state has one use");
        t.call(Scatter { dy, rows, dx });
    });
    if needs {
        t.root(y);
    }
    y
}

/// More rows than a chunk, untrained rows between them. The result's own gradient is not a product with a seed, so
/// the example returns it for comparison of values; gradients are checked against normaliser * sum.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (x, head) = (e.param(300, 12), e.param(31, 12));
    let rows: Vec<u32> = (0..300).filter(|r| r % 10 != 3).collect();
    let ids: Vec<u32> = rows.iter().map(|r| r * 7 % 31).collect();
    let m = rows.len();
    let targets = Targets {
        rows: e.words(m, 1, &rows),
        ids: e.words(m, 1, &ids),
        normaliser: e.floats(1, 1, &[0.125]),
    };
    let x = t.leaf(&x);
    linear_cross_entropy(t, x, &head, &targets)
}
