//! Root mean square norm over groups of columns, forward and backward.

use super::lanes;
use crate::call::{RmsNorm, RmsNormBack, RmsNormWeightBack, Store};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn rms_norm(cx: &mut Cx, c: &RmsNorm) {
    let x = cx.memory.rows::<f32>(&c.x);
    let weight = c.weight.map(|w| cx.memory.rows::<f32>(&w).vector());
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let rstd = c.rstd.map(|v| cx.memory.rows_mut::<f32>(&v));
    let isa = cx.isa;
    cx.by_blocks(x.len(), x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut y = unsafe { y.part(rows.clone(), 0..y.cols()) };
        // SAFETY: as above.
        let mut rstd = rstd.map(|v| unsafe { v.part(rows.clone(), 0..v.cols()) });
        for (i, r) in rows.enumerate() {
            let groups = x.row(r).chunks_exact(c.width).zip(y.row(i).chunks_exact_mut(c.width));
            for (g, (x, y)) in groups.enumerate() {
                let s = group(isa, x, weight, y, c.eps);
                if let Some(rstd) = &mut rstd {
                    rstd.row(i)[g] = s;
                }
            }
        }
    });
}

isa_fn! {
    fn group(x: &[f32], weight: Option<&[f32]>, y: &mut [f32], eps: f32) -> f32 {
        let mean = lanes::sum_of([x], |[x]| x * x) / x.len() as f32;
        let rstd = 1.0 / (mean + eps).sqrt();
        match weight {
            Some(w) => (0..x.len()).for_each(|i| y[i] = x[i] * rstd * w[i]),
            None => (0..x.len()).for_each(|i| y[i] = x[i] * rstd),
        }
        rstd
    }
}

pub fn rms_norm_back(cx: &mut Cx, c: &RmsNormBack) {
    let (dy, x) = (cx.memory.rows::<f32>(&c.dy), cx.memory.rows::<f32>(&c.x));
    let weight = c.weight.map(|w| cx.memory.rows::<f32>(&w).vector());
    let rstd = cx.memory.rows::<f32>(&c.rstd);
    let dx = cx.memory.rows_mut::<f32>(&c.dx);
    let isa = cx.isa;
    cx.by_blocks(x.len(), 2 * x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut dx = unsafe { dx.part(rows.clone(), 0..dx.cols()) };
        for (i, r) in rows.enumerate() {
            for (g, dx) in dx.row(i).chunks_exact_mut(c.width).enumerate() {
                let at = g * c.width..(g + 1) * c.width;
                group_back(isa, &dy.row(r)[at.clone()], &x.row(r)[at], weight, rstd.row(r)[g], dx, c.store);
            }
        }
    });
}

isa_fn! {
    /// dx = rstd * (w dy - x rstd * mean(w dy x rstd)).
    fn group_back(dy: &[f32], x: &[f32], weight: Option<&[f32]>, rstd: f32, dx: &mut [f32], store: Store) {
        let n = x.len();
        let (dy, x, dx) = (&dy[..n], &x[..n], &mut dx[..n]);
        let w = |i: usize| weight.map_or(1.0, |w| w[i]);
        let sum = match weight {
            Some(w) => lanes::sum_of([w, dy, x], |[w, dy, x]| w * dy * x),
            None => lanes::sum_of([dy, x], |[dy, x]| dy * x),
        };
        let mean = sum * rstd / n as f32;
        for i in 0..n {
            let d = rstd * (w(i) * dy[i] - x[i] * rstd * mean);
            dx[i] = if store == Store::Replace { d } else { dx[i] + d };
        }
    }
}

/// A task owns a strip of columns and adds up the rows in order.
pub fn rms_norm_weight_back(cx: &mut Cx, c: &RmsNormWeightBack) {
    let (dy, x) = (cx.memory.rows::<f32>(&c.dy), cx.memory.rows::<f32>(&c.x));
    let rstd = cx.memory.rows::<f32>(&c.rstd);
    let dw = cx.memory.rows_mut::<f32>(&c.dweight);
    // Each group of a row is a row of the sum.
    cx.by_strips(x.len() * x.cols() / c.width, c.width, |cols| {
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { dw.part(0..1, cols.clone()) };
        let dw = part.row(0);
        for r in 0..x.len() {
            for (g, s) in rstd.row(r).iter().enumerate() {
                let at = g * c.width + cols.start..g * c.width + cols.end;
                for ((dw, dy), x) in dw.iter_mut().zip(&dy.row(r)[at.clone()]).zip(&x.row(r)[at]) {
                    *dw += dy * x * s;
                }
            }
        }
    });
}
