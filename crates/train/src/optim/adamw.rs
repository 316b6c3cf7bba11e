//! AdamW (Loshchilov and Hutter, 2019): bias-corrected moments, decoupled weight decay.

use planish_compute::call::AdamW;

use super::Optim;

pub const OPTIM: Optim = Optim {
    name: "adamw",
    slots: &["m", "v"],
    hyper: |s, lr, t, clip| {
        let (b1, b2) = s.betas;
        let correction = |b: f64| 1.0 - b.powi(i32::try_from(t).unwrap_or(i32::MAX));
        [lr, b1, 1.0 - b1, b2, 1.0 - b2, s.eps, correction(b1), correction(b2), clip]
            .map(|x| x as f32)
            .to_vec()
    },
    step: |t, hyper| {
        let (m, v) = (t.slots[0], t.slots[1]);
        AdamW { grad: t.grad, hyper, param: t.param, m, v, weight_decay: t.weight_decay }.into()
    },
};
