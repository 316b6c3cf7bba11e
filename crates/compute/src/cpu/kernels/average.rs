//! One step of a running average.

use crate::call::Average;
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn average(cx: &mut Cx, c: &Average) {
    let x = cx.memory.rows::<f32>(&c.x).vector();
    let share = cx.memory.rows::<f32>(&c.hyper).vector()[0];
    let isa = cx.isa;
    cx.by_parts([&c.y], |at, [y]| step(isa, &x[at], y, share));
}

isa_fn! {
    fn step(x: &[f32], y: &mut [f32], share: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += share * (x - *y);
        }
    }
}
