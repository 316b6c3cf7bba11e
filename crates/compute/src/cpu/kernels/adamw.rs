//! One AdamW step on one tensor.

use crate::call::AdamW;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn adamw(cx: &mut Cx, c: &AdamW) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let (param, m, v) = (
        cx.memory.rows_mut::<f32>(&c.param),
        cx.memory.rows_mut::<f32>(&c.m),
        cx.memory.rows_mut::<f32>(&c.v),
    );
    let isa = cx.isa;
    cx.by_blocks(grad.len(), 1, |at, _| {
        // SAFETY: tasks own disjoint elements.
        let mut p = unsafe { param.part(0..1, at.clone()) };
        // SAFETY: as above.
        let mut m = unsafe { m.part(0..1, at.clone()) };
        // SAFETY: as above.
        let mut v = unsafe { v.part(0..1, at.clone()) };
        step(isa, &grad[at], p.row(0), m.row(0), v.row(0), hyper, c.weight_decay);
    });
}

isa_fn! {
    fn step(grad: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32], hyper: &[f32], decay: f32) {
        let [lr, b1, a1, b2, a2, eps, c1, c2, clip] = *hyper.first_chunk::<9>().expect("nine hyper-parameters");
        let n = grad.len();
        let (p, m, v) = (&mut p[..n], &mut m[..n], &mut v[..n]);
        for i in 0..n {
            let g = grad[i] * clip;
            m[i] = b1 * m[i] + a1 * g;
            v[i] = b2 * v[i] + a2 * g * g;
            p[i] = p[i] * (1.0 - lr * decay) - lr * (m[i] / c1) / ((v[i] / c2).sqrt() + eps);
        }
    }
}
