//! Linear map to the vocabulary and cross entropy in one, in chunks of trained positions.
//!
//! The loss's normaliser is known before the pass, so a chunk's logits can become their own gradient at once, and
//! neither all logits nor their gradient ever exist together.

use planish_base::TypeId;
use planish_compute::call::{CrossEntropy, Store, TopK};
use planish_compute::{Stage, View};

use super::linear::{outer, times, times_transposed};
use super::{Adapter, Dropout, Example, Linear, gather};
use crate::tape::{Mode, Tape, Var};

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

/// The cross entropy of x [n, d] under the head [vocabulary, d] and its adapters at the trained rows: [m, 1], one loss
/// a row, not normalised. Its backward pass needs no seed: gradients are those of normaliser * sum of the losses.
pub fn linear_cross_entropy(t: &mut Tape, x: Var, head: &Linear, p: &Targets) -> Var {
    let x = gather(t, x, p.rows);
    let (xv, x_needs) = (t.view(x), t.needs_grad(x));
    let trains = t.mode() == Mode::Train;
    let dhead = head.weight.grad.filter(|_| trains);
    let dx = x_needs.then(|| t.temp(xv.rows, xv.cols));
    let lows = lows(t, xv, &head.adapters);
    let loss = t.temp(xv.rows, 1);
    t.keep(loss);
    for start in (0..xv.rows).step_by(CHUNK) {
        let at = |v: View| v.rows_range(start, CHUNK.min(xv.rows - start));
        let logits = logits(t, head, &lows, xv, start);
        let (targets, loss) = (at(p.ids), at(loss));
        t.call(CrossEntropy { targets, normaliser: p.normaliser, logits, loss });
        t.stage(Stage::Backward);
        let product = t.product();
        if let Some(dx) = dx {
            times_transposed(t, product, logits, head.weight.view, at(dx), 1.0, Store::Replace);
        }
        if let Some(dhead) = dhead {
            outer(t, product, logits, at(xv), dhead, 1.0);
        }
        if trains {
            lows.iter().for_each(|low| low.chunk_back(t, logits, start));
        }
        t.stage(Stage::Forward);
    }
    if trains {
        t.stage(Stage::Backward);
        lows.iter().for_each(|low| low.back(t, dx));
        t.stage(Stage::Forward);
    }
    let y =
        t.push(loss, x_needs, move |t, _| t.grad_is(x, dx.expect("a value that needs a gradient has one")));
    if x_needs {
        t.root(y);
    }
    y
}

/// An adapter of the head at all trained rows: these are few numbers beside the logits.
struct Low {
    adapter: Adapter,
    /// x after dropout.
    x: View,
    /// x A'.
    low: View,
    /// Its gradient, which comes chunk by chunk.
    dlow: View,
}

fn lows(t: &mut Tape, x: View, adapters: &[Adapter]) -> Vec<Low> {
    let thin = t.thin_product();
    let mut lows = Vec::with_capacity(adapters.len());
    for a in adapters {
        let (dropped, rank) = (a.input(t, x), a.a.view.rows);
        let (low, dlow) = (t.temp(x.rows, rank), t.temp(x.rows, rank));
        times(t, thin, dropped, a.a.view, low, 1.0, Store::Replace);
        lows.push(Low { adapter: *a, x: dropped, low, dlow });
    }
    lows
}

impl Low {
    /// dB = scale dlogits' low, dlow = scale dlogits B, for the chunk from this row on.
    fn chunk_back(&self, t: &mut Tape, dlogits: View, start: usize) {
        let (thin, a) = (t.thin_product(), &self.adapter);
        let at = |v: View| v.rows_range(start, dlogits.rows);
        if let Some(db) = a.b.grad {
            outer(t, thin, dlogits, at(self.low), db, a.scale);
        }
        times_transposed(t, thin, dlogits, a.b.view, at(self.dlow), a.scale, Store::Replace);
    }

    /// dA = dlow' x, dx += dropout(dlow A).
    fn back(&self, t: &mut Tape, dx: Option<View>) {
        let thin = t.thin_product();
        if let Some(da) = self.adapter.a.grad {
            outer(t, thin, self.dlow, self.x, da, 1.0);
        }
        if let Some(dx) = dx {
            self.adapter.input_back(t, self.dlow, dx);
        }
    }
}

/// The logits of the chunk from row `start` on.
fn logits(t: &mut Tape, head: &Linear, lows: &[Low], x: View, start: usize) -> View {
    let n = CHUNK.min(x.rows - start);
    let (product, thin) = (t.product(), t.thin_product());
    let logits = t.temp(n, head.weight.view.rows);
    times(t, product, x.rows_range(start, n), head.weight.view, logits, 1.0, Store::Replace);
    for low in lows {
        let (a, chunk) = (&low.adapter, low.low.rows_range(start, n));
        times(t, thin, chunk, a.b.view, logits, a.scale, Store::Accumulate);
    }
    logits
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
pub fn linear_scores(t: &mut Tape, x: Var, head: &Linear, p: &Targets, k: usize) -> Scores {
    let x = gather(t, x, p.rows);
    let xv = t.view(x);
    let lows = lows(t, xv, &head.adapters);
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
        let logits = logits(t, head, &lows, xv, start);
        if let Some((ids, logprobs)) = top {
            let (ids, logprobs) = (ids.rows_range(start, n), logprobs.rows_range(start, n));
            t.call(TopK { logits, ids, logprobs });
        }
        let (targets, loss) = (p.ids.rows_range(start, n), loss.rows_range(start, n));
        t.call(CrossEntropy { targets, normaliser: p.normaliser, logits, loss });
    }
    Scores { loss, top }
}

/// More rows than a chunk, untrained rows between them, an adapter with dropout. The result's own gradient is not a product with a seed, so
/// the example returns it for comparison of values; gradients are checked against normaliser * sum.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (x, weight) = (e.param(300, 12), e.param(31, 12));
    let (a, b, key) = (e.param(2, 12), e.param(31, 2), e.words(1, 4, &[7, 0, 3, 0]));
    let dropout = Some(Dropout { p: 0.3, key, stream: 1 });
    let adapters = vec![Adapter { a, b, scale: 0.5, dropout, magnitude: None }];
    let head = Linear { weight, bias: None, adapters };
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
