//! y = act(gate) * up.

use planish_compute::call::{Activation, Gated, GatedBack, Store};

use super::Example;
use crate::tape::{Tape, Var};

/// The gated activation of gate and up, both [n, width].
pub fn gated(t: &mut Tape, gate: Var, up: Var, act: Activation) -> Var {
    let (g, u) = (t.view(gate), t.view(up));
    assert_eq!((g.rows, g.cols), (u.rows, u.cols), "shapes of a gated activation");
    let y = t.temp(g.rows, g.cols);
    t.call(Gated { gate: g, up: u, y, act });
    let needs = t.needs_grad(gate) || t.needs_grad(up);
    // dgate = dy up act'(gate), dup = dy act(gate)
    t.push(y, needs, move |t, dy| {
        let ((dgate, first), (dup, second)) = (t.grad_into(gate), t.grad_into(up));
        assert!(first == Store::Replace && second == Store::Replace, "gate and up have one use");
        t.call(GatedBack { dy, gate: g, up: u, dgate, dup, act });
    })
}

pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let x = e.param(3, 40);
    let x = t.leaf(&x);
    let (gate, up) = (t.columns(x, 0, 10), t.columns(x, 10, 10));
    let first = gated(t, gate, up, Activation::Silu);
    let (gate, up) = (t.columns(x, 20, 10), t.columns(x, 30, 10));
    let second = gated(t, gate, up, Activation::Gelu);
    super::add(t, first, second, 1.0)
}
