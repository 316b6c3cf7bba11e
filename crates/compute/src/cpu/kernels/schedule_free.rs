//! Schedule-free AdamW: to the point where the gradient is taken, and from there to the next average.

use crate::call::{Extrapolate, ScheduleFree};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn extrapolate(cx: &mut Cx, c: &Extrapolate) {
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let [_, b1, a1, _, _, _, _, first, _] = *hyper.first_chunk::<9>().expect("nine hyper-parameters");
    cx.by_parts([&c.param, &c.x, &c.z], |_, [p, x, z]| {
        x.copy_from_slice(p);
        if first > 0.0 {
            z.copy_from_slice(p);
        }
        for ((p, x), z) in p.iter_mut().zip(x).zip(z) {
            *p = a1 * *z + b1 * *x;
        }
    });
}

pub fn step(cx: &mut Cx, c: &ScheduleFree) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let x = cx.memory.rows::<f32>(&c.x).vector();
    let share = weigh(cx, c, f64::from(hyper[0])) as f32;
    let (isa, decay) = (cx.isa, c.weight_decay);
    cx.by_parts([&c.param, &c.z, &c.v], |at, [p, z, v]| {
        update(isa, &grad[at.clone()], &x[at], p, z, v, hyper, decay, share);
    });
}

/// Counts a step of this rate, and gives its share of the average.
fn weigh(cx: &Cx, c: &ScheduleFree, lr: f64) -> f64 {
    // SAFETY: no task of this call has begun, and none reads it.
    let mut part = unsafe { cx.memory.rows_mut::<f64>(&c.weights).part(0..1, 0..2) };
    let [largest, sum] = part.row(0).first_chunk_mut::<2>().expect("two numbers");
    *largest = largest.max(lr);
    let weight = *largest * *largest;
    *sum += weight;
    if *sum > 0.0 { weight / *sum } else { 0.0 }
}

isa_fn! {
    fn update(
        grad: &[f32], x: &[f32], p: &mut [f32], z: &mut [f32], v: &mut [f32], hyper: &[f32], decay: f32,
        share: f32
    ) {
        let [lr, _, _, b2, a2, eps, c2, _, clip] = *hyper.first_chunk::<9>().expect("nine hyper-parameters");
        let inverse = 1.0 / c2;
        let n = grad.len();
        let (x, p, z, v) = (&x[..n], &mut p[..n], &mut z[..n], &mut v[..n]);
        for i in 0..n {
            let g = grad[i] * clip;
            v[i] = b2 * v[i] + a2 * g * g;
            z[i] -= lr * (g / ((v[i] * inverse).sqrt() + eps) + decay * p[i]);
            p[i] = x[i] + share * (z[i] - x[i]);
        }
    }
}
