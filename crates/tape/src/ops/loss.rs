//! Linear map to the vocabulary and cross entropy in one, in chunks of trained positions.
//!
//! The loss's normaliser is known before the pass, so a chunk's logits can become their own gradient at once, and
//! neither all logits nor their gradient ever exist together.

use planish_base::TypeId;
use planish_compute::call::{CrossEntropy, Store, TopK};
use planish_compute::{Stage, View};

use super::linear::{outer, times, times_transposed};
use super::{Example, gather};
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
    let x = gather(t, x, p.rows);
    let (xv, needs) = (t.view(x), t.needs_grad(x));
    let product = t.product();
    let dhead = head.grad.filter(|_| t.mode() == Mode::Train);
    let dx = needs.then(|| t.temp(xv.rows, xv.cols));
    let loss = t.temp(xv.rows, 1);
    t.keep(loss);
    for start in (0..xv.rows).step_by(CHUNK) {
        let n = CHUNK.min(xv.rows - start);
        let chunk = xv.rows_range(start, n);
        let logits = t.temp(n, head.view.rows);
        times(t, product, chunk, head.view, logits, 1.0, Store::Replace);
        let (targets, loss) = (p.ids.rows_range(start, n), loss.rows_range(start, n));
        t.call(CrossEntropy { targets, normaliser: p.normaliser, logits, loss });
        t.stage(Stage::Backward);
        if let Some(dx) = dx {
            times_transposed(t, product, logits, head.view, dx.rows_range(start, n), 1.0, Store::Replace);
        }
        if let Some(dhead) = dhead {
            outer(t, product, logits, chunk, dhead, 1.0);
        }
        t.stage(Stage::Forward);
    }
    let y = t.push(loss, needs, move |t, _| t.grad_is(x, dx.expect("a value that needs a gradient has one")));
    if needs {
        t.root(y);
    }
    y
}

/// What a pass that only scores gives.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// [m, 1]: minus the log-probability of each target.
    pub loss: View,
    /// [m, k] and [m, k]: ids and log-probabilities of the most probable tokens; none for k = 0.
    pub top: Option<(View, View)>,
}

/// As [`linear_cross_entropy`] without gradients, with the `k` most probable tokens of each row.
pub fn linear_scores(t: &mut Tape, x: Var, head: &Param, p: &Targets, k: usize) -> Scores {
    let x = gather(t, x, p.rows);
    let xv = t.view(x);
    let product = t.product();
    let loss = t.temp(xv.rows, 1);
    t.keep(loss);
    let top = (k > 0).then(|| {
        let (ids, logprobs) = (View { dtype: TypeId::I32, ..t.temp(xv.rows, k) }, t.temp(xv.rows, k));
        t.keep(ids);
        t.keep(logprobs);
        (ids, logprobs)
    });
    for start in (0..xv.rows).step_by(CHUNK) {
        let n = CHUNK.min(xv.rows - start);
        let logits = t.temp(n, head.view.rows);
        times(t, product, xv.rows_range(start, n), head.view, logits, 1.0, Store::Replace);
        if let Some((ids, logprobs)) = top {
            let (ids, logprobs) = (ids.rows_range(start, n), logprobs.rows_range(start, n));
            t.call(TopK { logits, ids, logprobs });
        }
        let (targets, loss) = (p.ids.rows_range(start, n), loss.rows_range(start, n));
        t.call(CrossEntropy { targets, normaliser: p.normaliser, logits, loss });
    }
    Scores { loss, top }
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
