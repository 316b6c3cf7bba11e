//! One AdamW step on one tensor.

use crate::call::AdamW;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn adamw(cx: &mut Cx, c: &AdamW) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let (isa, decay) = (cx.isa, c.weight_decay);
    cx.by_parts([&c.param, &c.m, &c.v], |at, [p, m, v]| step(isa, &grad[at], p, m, v, hyper, decay));
}

isa_fn! {
    fn step(grad: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32], hyper: &[f32], decay: f32) {
        update(grad, p, m, v, hyper, decay)
    }
}

/// The step, to be compiled into a kernel.
#[inline(always)]
pub fn update(grad: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32], hyper: &[f32], decay: f32) {
    let [lr, b1, a1, b2, a2, eps, c1, c2, clip] = *hyper.first_chunk::<9>().expect("nine hyper-parameters");
    // A division takes as long as ten products: one is left to each element.
    let (keep, rate, inverse) = (1.0 - lr * decay, lr / c1, 1.0 / c2);
    let n = grad.len();
    let (p, m, v) = (&mut p[..n], &mut m[..n], &mut v[..n]);
    for i in 0..n {
        let g = grad[i] * clip;
        m[i] = b1 * m[i] + a1 * g;
        v[i] = b2 * v[i] + a2 * g * g;
        p[i] = p[i] * keep - rate * m[i] / ((v[i] * inverse).sqrt() + eps);
    }
}
