//! AdamW with moments of 8 bits (Dettmers et al., 2022): a quarter of the state. Vectors, which are few and small, keep
//! single precision.

use planish_base::TypeId;
use planish_compute::View;
use planish_compute::call::{AdamW8, CODE_BLOCK};
use planish_tape::Tape;

use super::{Optim, Slot, Tensor, Trained, adamw};

pub const OPTIM: Optim = Optim { name: "adamw8", slots, step, ..adamw::OPTIM };

fn slots(t: &Tensor) -> Vec<Slot> {
    if t.is_vector() {
        return adamw::slots(t);
    }
    let codes = |name| Slot { dtype: TypeId::I8, ..Slot::vector(name, t.elements()) };
    let scales = |name| Slot::vector(name, t.elements().div_ceil(CODE_BLOCK));
    vec![codes("m"), codes("v"), scales("m_scale"), scales("v_scale")]
}

fn step(tape: &mut Tape, t: &Trained, hyper: View) {
    let [m, v, m_scale, v_scale] = *t.slots else { return adamw::step(tape, t, hyper) };
    let (grad, param, weight_decay) = (t.grad, t.param, t.weight_decay);
    tape.call(AdamW8 { grad, hyper, param, m, v, m_scale, v_scale, weight_decay });
}
