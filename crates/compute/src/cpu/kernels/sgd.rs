//! One step of SGD with momentum on one tensor.

use crate::call::Sgd;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn sgd(cx: &mut Cx, c: &Sgd) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let (isa, decay) = (cx.isa, c.weight_decay);
    cx.by_parts([&c.param, &c.m], |at, [p, m]| step(isa, &grad[at], p, m, hyper, decay));
}

isa_fn! {
    fn step(grad: &[f32], p: &mut [f32], m: &mut [f32], hyper: &[f32], decay: f32) {
        let [lr, mu, a, b, clip] = *hyper.first_chunk::<5>().expect("five hyper-parameters");
        let n = grad.len();
        let (p, m) = (&mut p[..n], &mut m[..n]);
        for i in 0..n {
            let g = grad[i] * clip;
            m[i] = mu * m[i] + g;
            p[i] = p[i] * (1.0 - lr * decay) - lr * (a * g + b * m[i]);
        }
    }
}
