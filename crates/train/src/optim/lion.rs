//! Lion (Chen et al., 2023): the sign of an average of gradients, one moment.

use planish_compute::call::Lion;

use super::{Optim, OptimSettings, Slot};

pub const OPTIM: Optim = Optim {
    name: "lion",
    uses: &["betas"],
    usual: OptimSettings { betas: (0.9, 0.99), ..OptimSettings::USUAL },
    // The paper advises a rate three to ten times below AdamW's, since every element moves by the whole rate.
    rate: 0.2,
    slots: |t| vec![Slot::vector("m", t.elements())],
    hyper: |s, lr, _, clip| {
        let (b1, b2) = s.betas;
        [lr, b1, 1.0 - b1, b2, 1.0 - b2, clip].map(|x| x as f32).to_vec()
    },
    step: |tape, t, hyper| {
        let (grad, param, m) = (t.grad, t.param, t.slots[0]);
        tape.call(Lion { grad, hyper, param, m, weight_decay: t.weight_decay });
    },
    detour: None,
};
