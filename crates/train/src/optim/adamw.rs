//! AdamW (Loshchilov and Hutter, 2019): bias-corrected moments, decoupled weight decay.

use planish_compute::View;
use planish_compute::call::AdamW;
use planish_tape::Tape;

use super::{Optim, OptimSettings, Slot, Tensor, Trained};

pub const OPTIM: Optim = Optim {
    name: "adamw",
    uses: &["betas"],
    usual: OptimSettings::USUAL,
    rate: 1.0,
    slots,
    hyper,
    step,
    detour: None,
};

pub fn slots(t: &Tensor) -> Vec<Slot> {
    ["m", "v"].map(|name| Slot::vector(name, t.elements())).to_vec()
}

pub fn hyper(s: &OptimSettings, lr: f64, t: u64, clip: f64) -> Vec<f32> {
    let (b1, b2) = s.betas;
    [lr, b1, 1.0 - b1, b2, 1.0 - b2, s.eps, correction(b1, t), correction(b2, t), clip]
        .map(|x| x as f32)
        .to_vec()
}

/// How much of an average with decay `b` is there after t steps.
pub fn correction(b: f64, t: u64) -> f64 {
    1.0 - b.powi(i32::try_from(t).unwrap_or(i32::MAX))
}

pub fn step(tape: &mut Tape, t: &Trained, hyper: View) {
    let (m, v) = (t.slots[0], t.slots[1]);
    tape.call(AdamW { grad: t.grad, hyper, param: t.param, m, v, weight_decay: t.weight_decay });
}
