//! What Muon does besides matrix products: momentum, normalisation, and the step along a direction.

use crate::call::{Descend, Momentum, Normalise};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn momentum(cx: &mut Cx, c: &Momentum) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let isa = cx.isa;
    cx.by_parts([&c.m, &c.out], |at, [m, out]| nesterov(isa, &grad[at], m, out, hyper));
}

isa_fn! {
    fn nesterov(grad: &[f32], m: &mut [f32], out: &mut [f32], hyper: &[f32]) {
        let [_, mu, clip] = *hyper.first_chunk::<3>().expect("three hyper-parameters");
        let n = grad.len();
        let (m, out) = (&mut m[..n], &mut out[..n]);
        for i in 0..n {
            let g = grad[i] * clip;
            m[i] = mu * m[i] + g;
            out[i] = g + mu * m[i];
        }
    }
}

pub fn normalise(cx: &mut Cx, c: &Normalise) {
    let sum: f64 = cx.memory.rows::<f64>(&c.sums).vector().iter().sum();
    let factor = (1.0 / sum.sqrt().max(f64::from(c.eps))) as f32;
    cx.by_parts([&c.x], |_, [x]| x.iter_mut().for_each(|x| *x *= factor));
}

pub fn descend(cx: &mut Cx, c: &Descend) {
    let direction = cx.memory.rows::<f32>(&c.direction).vector();
    let lr = cx.memory.rows::<f32>(&c.hyper).vector()[0];
    let (isa, keep, rate) = (cx.isa, 1.0 - lr * c.weight_decay, lr * c.scale);
    cx.by_parts([&c.param], |at, [p]| step(isa, &direction[at], p, keep, rate));
}

isa_fn! {
    fn step(direction: &[f32], p: &mut [f32], keep: f32, rate: f32) {
        for (p, d) in p.iter_mut().zip(direction) {
            *p = *p * keep - rate * d;
        }
    }
}
