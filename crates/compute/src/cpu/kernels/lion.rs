//! One Lion step on one tensor.

use crate::call::Lion;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn lion(cx: &mut Cx, c: &Lion) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let (isa, decay) = (cx.isa, c.weight_decay);
    cx.by_parts([&c.param, &c.m], |at, [p, m]| step(isa, &grad[at], p, m, hyper, decay));
}

isa_fn! {
    fn step(grad: &[f32], p: &mut [f32], m: &mut [f32], hyper: &[f32], decay: f32) {
        let [lr, b1, a1, b2, a2, clip] = *hyper.first_chunk::<6>().expect("six hyper-parameters");
        let n = grad.len();
        let (p, m) = (&mut p[..n], &mut m[..n]);
        for i in 0..n {
            let g = grad[i] * clip;
            let direction = b1 * m[i] + a1 * g;
            // `signum` of zero is one, and a tensor without gradient must not move.
            let sign = f32::from(i8::from(direction > 0.0) - i8::from(direction < 0.0));
            p[i] = p[i] * (1.0 - lr * decay) - lr * sign;
            m[i] = b2 * m[i] + a2 * g;
        }
    }
}
