//! Rows of an adapted matrix brought to a trained norm.

use super::lanes;
use crate::call::{MagnitudeBack, Rescale, RowNorms};
use crate::cpu::Cx;
use crate::isa::isa_fn;
use crate::quant::Quant;

/// A row is decoded, adapted and summed up in a worker's cache; the matrix itself never exists.
pub fn row_norms(cx: &mut Cx, c: &RowNorms) {
    let quant = Quant::of(c.w.dtype).expect("the model checks tensor types when it is loaded");
    let (bytes, stride) = (cx.memory.bytes(&c.w), c.w.bytes_of(c.w.stride) as usize);
    let (a, b) = (cx.memory.rows::<f32>(&c.a), cx.memory.rows::<f32>(&c.b));
    let norms = cx.memory.rows_mut::<f32>(&c.norms);
    let (input, isa) = (c.w.cols, cx.isa);
    assert_eq!((a.cols(), b.len(), b.cols(), norms.cols()), (input, c.w.rows, a.len(), c.w.rows));
    cx.by_blocks(c.w.rows, input * (a.len() + 1), |rows, scratch| {
        // SAFETY: tasks own disjoint elements.
        let mut part = unsafe { norms.part(0..1, rows.clone()) };
        let row = scratch.floats(input);
        for (norm, r) in part.row(0).iter_mut().zip(rows) {
            quant.decode_range(isa, &bytes[r * stride..], 0, row);
            for (k, factor) in b.row(r).iter().enumerate() {
                add_scaled(isa, row, a.row(k), c.scale * factor);
            }
            *norm = length(isa, row);
        }
    });
}

isa_fn! {
    fn add_scaled(y: &mut [f32], x: &[f32], factor: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += factor * x;
        }
    }
}

isa_fn! {
    fn length(x: &[f32]) -> f32 {
        lanes::sum_of([x], |[x]| x * x).sqrt()
    }
}

pub fn rescale(cx: &mut Cx, c: &Rescale) {
    let x = cx.memory.rows::<f32>(&c.x);
    let vector = |v| cx.memory.rows::<f32>(v).vector();
    let (magnitude, norms, bias) = (vector(&c.magnitude), vector(&c.norms), c.bias.as_ref().map(vector));
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let isa = cx.isa;
    cx.by_blocks(y.len(), y.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { y.part(rows.clone(), 0..y.cols()) };
        for (i, r) in rows.enumerate() {
            rescale_row(isa, part.row(i), x.row(r), magnitude, norms, bias);
        }
    });
}

isa_fn! {
    fn rescale_row(y: &mut [f32], x: &[f32], magnitude: &[f32], norms: &[f32], bias: Option<&[f32]>) {
        let n = y.len();
        let (x, magnitude, norms) = (&x[..n], &magnitude[..n], &norms[..n]);
        for i in 0..n {
            y[i] = x[i] * quotient(magnitude[i], norms[i]);
        }
        for (y, bias) in y.iter_mut().zip(bias.unwrap_or_default()) {
            *y += bias;
        }
    }
}

/// A row of zeros has no direction, and stays as it is.
#[inline(always)]
fn quotient(x: f32, norm: f32) -> f32 {
    if norm == 0.0 { 0.0 } else { x / norm }
}

/// A task owns a strip of columns and adds up the rows in order.
pub fn magnitude_back(cx: &mut Cx, c: &MagnitudeBack) {
    let (dy, x) = (cx.memory.rows::<f32>(&c.dy), cx.memory.rows::<f32>(&c.x));
    let norms = cx.memory.rows::<f32>(&c.norms).vector();
    let dm = cx.memory.rows_mut::<f32>(&c.dmagnitude);
    cx.by_strips(x.len(), x.cols(), |cols| {
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { dm.part(0..1, cols.clone()) };
        for r in 0..x.len() {
            let (dy, x) = (&dy.row(r)[cols.clone()], &x.row(r)[cols.clone()]);
            for (((dm, dy), x), norm) in part.row(0).iter_mut().zip(dy).zip(x).zip(&norms[cols.clone()]) {
                *dm += quotient(dy * x, *norm);
            }
        }
    });
}
