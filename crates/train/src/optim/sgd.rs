//! SGD with momentum (Sutskever et al., 2013) and decoupled weight decay (Loshchilov and Hutter, 2019).

use planish_compute::call::Sgd;

use super::{Optim, OptimSettings, Slot};

pub const OPTIM: Optim = Optim {
    name: "sgd",
    uses: &["momentum", "nesterov"],
    usual: OptimSettings::USUAL,
    rate: 1.0,
    slots: |t| vec![Slot::vector("m", t.elements())],
    hyper: |s, lr, _, clip| {
        let (gradient, sum) = if s.nesterov { (1.0, s.momentum) } else { (0.0, 1.0) };
        [lr, s.momentum, gradient, sum, clip].map(|x| x as f32).to_vec()
    },
    step: |tape, t, hyper| {
        let (grad, param, m) = (t.grad, t.param, t.slots[0]);
        tape.call(Sgd { grad, hyper, param, m, weight_decay: t.weight_decay });
    },
    detour: None,
};
