//! Schedule-free AdamW (Defazio et al., 2024): steps move z, the weights are an average x of all z, and gradients are
//! taken between the two. Made for a constant rate after warm-up.
//!
//! x is kept apart during a step and not computed back from the point of the gradient, so that looking at the weights
//! never changes their bits.

use planish_base::TypeId;
use planish_compute::call::{Broadcast, Extrapolate, ScheduleFree};

use super::{Detour, Kept, Optim, OptimSettings, Slot, adamw};

pub const OPTIM: Optim = Optim {
    name: "schedule-free",
    uses: &["betas"],
    usual: OptimSettings::USUAL,
    rate: 1.0,
    slots: |t| {
        let vector = |name| Slot::vector(name, t.elements());
        let x = Slot { kept: Kept::WithinStep, ..vector("x") };
        let weights = Slot { dtype: TypeId::F64, ..Slot::vector("weights", 2) };
        vec![x, vector("z"), vector("v"), weights]
    },
    hyper: |s, lr, t, clip| {
        let (b1, b2) = s.betas;
        let first = if t == 1 { 1.0 } else { 0.0 };
        [lr, b1, 1.0 - b1, b2, 1.0 - b2, s.eps, adamw::correction(b2, t), first, clip]
            .map(|x| x as f32)
            .to_vec()
    },
    step: |tape, t, hyper| {
        let (grad, param, weight_decay) = (t.grad, t.param, t.weight_decay);
        let [x, z, v, weights] = *t.slots.first_chunk().expect("four slots are declared");
        tape.call(ScheduleFree { grad, hyper, x, param, z, v, weights, weight_decay });
    },
    detour: Some(Detour {
        begin: |tape, t, hyper| {
            tape.call(Extrapolate { hyper, param: t.param, x: t.slots[0], z: t.slots[1] });
        },
        abandon: |tape, t, _| tape.call(Broadcast { row: t.slots[0], out: t.param }),
    }),
};
