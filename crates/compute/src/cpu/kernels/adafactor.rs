//! Adafactor: second moments as means over rows and columns, and an update of bounded size.

use super::lanes;
use crate::call::{FactoredMoments, FactoredSquares, FactoredStep};
use crate::cpu::Cx;
use crate::isa::isa_fn;
use crate::view::View;

/// Columns that are added up together.
const STRIP: usize = 64;

/// The numbers of a step.
struct Hyper {
    lr: f32,
    b2: f32,
    a2: f32,
    eps: f32,
    largest: f64,
    clip: f32,
}

impl Hyper {
    fn of(row: &[f32]) -> Hyper {
        let [lr, b2, a2, eps, largest, clip] = *row.first_chunk::<6>().expect("six hyper-parameters");
        Hyper { lr, b2, a2, eps, largest: f64::from(largest), clip }
    }

    /// A moment after a step with this mean of squares.
    fn moment(&self, old: f32, mean: f64) -> f32 {
        self.b2 * old + self.a2 * mean as f32
    }
}

pub fn moments(cx: &mut Cx, c: &FactoredMoments) {
    let grad = cx.memory.rows::<f32>(&c.grad);
    let h = Hyper::of(cx.memory.rows::<f32>(&c.hyper).vector());
    let (rows, cols) = (cx.memory.rows_mut::<f32>(&c.rows), cx.memory.rows_mut::<f32>(&c.cols));
    let isa = cx.isa;
    cx.by_blocks(grad.len(), grad.cols(), |at, _| {
        // SAFETY: tasks own disjoint elements.
        let mut part = unsafe { rows.part(0..1, at.clone()) };
        for (moment, r) in part.row(0).iter_mut().zip(at) {
            let sum = row_squares(isa, grad.row(r), h.clip, h.eps);
            *moment = h.moment(*moment, sum / grad.cols() as f64);
        }
    });
    cx.by_strips(grad.len(), grad.cols(), |at| {
        // SAFETY: tasks own disjoint elements.
        let mut part = unsafe { cols.part(0..1, at.clone()) };
        for (moments, start) in part.row(0).chunks_mut(STRIP).zip(at.step_by(STRIP)) {
            let mut sums = [0f64; STRIP];
            for r in 0..grad.len() {
                add_squares(isa, &grad.row(r)[start..start + moments.len()], &mut sums, h.clip, h.eps);
            }
            for (moment, sum) in moments.iter_mut().zip(sums) {
                *moment = h.moment(*moment, sum / grad.len() as f64);
            }
        }
    });
}

isa_fn! {
    fn row_squares(grad: &[f32], clip: f32, eps: f32) -> f64 {
        lanes::long_sum([grad], |[g]| {
            let g = g * clip;
            g * g + eps
        })
    }
}

isa_fn! {
    fn add_squares(grad: &[f32], sums: &mut [f64; STRIP], clip: f32, eps: f32) {
        for (sum, g) in sums.iter_mut().zip(grad) {
            let g = g * clip;
            *sum += f64::from(g * g + eps);
        }
    }
}

/// What makes a gradient an update: the factor 1 / sqrt(rows[r] / mean(rows)) of each row, and the second moment of
/// each column, whose root it is divided by.
fn factors<'a>(cx: &Cx<'a>, rows: &View, cols: &View) -> (impl Fn(usize) -> f32 + use<'a>, &'a [f32]) {
    let rows = cx.memory.rows::<f32>(rows).vector();
    let mean = rows.iter().map(|x| f64::from(*x)).sum::<f64>() / rows.len() as f64;
    (move |r| (mean / f64::from(rows[r])).sqrt() as f32, cx.memory.rows::<f32>(cols).vector())
}

pub fn squares(cx: &mut Cx, c: &FactoredSquares) {
    let grad = cx.memory.rows::<f32>(&c.grad);
    let h = Hyper::of(cx.memory.rows::<f32>(&c.hyper).vector());
    let (factor, cols) = factors(cx, &c.rows, &c.cols);
    let sums = cx.memory.rows_mut::<f64>(&c.sums);
    let isa = cx.isa;
    cx.by_blocks(grad.len(), grad.cols(), |at, _| {
        // SAFETY: tasks own disjoint elements.
        let mut part = unsafe { sums.part(0..1, at.clone()) };
        for (sum, r) in part.row(0).iter_mut().zip(at) {
            *sum = update_squares(isa, grad.row(r), cols, factor(r) * h.clip);
        }
    });
}

isa_fn! {
    fn update_squares(grad: &[f32], cols: &[f32], factor: f32) -> f64 {
        lanes::long_sum([grad, cols], |[g, moment]| {
            let u = g * factor / moment.sqrt();
            u * u
        })
    }
}

pub fn step(cx: &mut Cx, c: &FactoredStep) {
    let grad = cx.memory.rows::<f32>(&c.grad);
    let h = Hyper::of(cx.memory.rows::<f32>(&c.hyper).vector());
    let (factor, cols) = factors(cx, &c.rows, &c.cols);
    let sum: f64 = cx.memory.rows::<f64>(&c.sums).vector().iter().sum();
    let rms = (sum / c.grad.elements() as f64).sqrt();
    let rate = h.lr / (rms / h.largest).max(1.0) as f32;
    let param = cx.memory.rows_mut::<f32>(&c.param);
    let (isa, keep) = (cx.isa, 1.0 - h.lr * c.weight_decay);
    cx.by_blocks(grad.len(), grad.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { param.part(rows.clone(), 0..param.cols()) };
        for (i, r) in rows.enumerate() {
            descend(isa, grad.row(r), cols, part.row(i), keep, rate * factor(r) * h.clip);
        }
    });
}

isa_fn! {
    fn descend(grad: &[f32], cols: &[f32], p: &mut [f32], keep: f32, factor: f32) {
        let n = grad.len();
        let (cols, p) = (&cols[..n], &mut p[..n]);
        for i in 0..n {
            p[i] = p[i] * keep - grad[i] * factor / cols[i].sqrt();
        }
    }
}
