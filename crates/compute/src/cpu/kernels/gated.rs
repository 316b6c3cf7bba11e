//! The gated activation of an MLP, forward and backward.

use planish_base::math::exp;

use crate::call::{Activation, Gated, GatedBack};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn gated(cx: &mut Cx, c: &Gated) {
    let (gate, up) = (cx.memory.rows::<f32>(&c.gate), cx.memory.rows::<f32>(&c.up));
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let isa = cx.isa;
    cx.by_blocks(y.len(), 2 * y.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { y.part(rows.clone(), 0..y.cols()) };
        for (i, r) in rows.enumerate() {
            match c.act {
                Activation::Silu => silu(isa, gate.row(r), up.row(r), part.row(i)),
                Activation::Gelu => gelu(isa, gate.row(r), up.row(r), part.row(i)),
            }
        }
    });
}

isa_fn! {
    fn silu(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
            *y = g / (1.0 + exp(-g)) * u;
        }
    }
}

/// 2 sqrt(2 / pi), and the factor of the cube: gelu(g) = g sigmoid(SLOPE (g + CUBE g^3)), since
/// (1 + tanh(u)) / 2 = sigmoid(2 u).
const SLOPE: f32 = 1.595_769;
const CUBE: f32 = 0.044_715;

isa_fn! {
    fn gelu(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
            let z = SLOPE * g * (1.0 + CUBE * g * g);
            *y = g / (1.0 + exp(-z)) * u;
        }
    }
}

pub fn gated_back(cx: &mut Cx, c: &GatedBack) {
    let (gate, up) = (cx.memory.rows::<f32>(&c.gate), cx.memory.rows::<f32>(&c.up));
    let dy = cx.memory.rows::<f32>(&c.dy);
    let (dgate, dup) = (cx.memory.rows_mut::<f32>(&c.dgate), cx.memory.rows_mut::<f32>(&c.dup));
    let isa = cx.isa;
    cx.by_blocks(dy.len(), 4 * dy.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut dgate = unsafe { dgate.part(rows.clone(), 0..dgate.cols()) };
        // SAFETY: as above.
        let mut dup = unsafe { dup.part(rows.clone(), 0..dup.cols()) };
        for (i, r) in rows.enumerate() {
            match c.act {
                Activation::Silu => {
                    silu_back(isa, dy.row(r), gate.row(r), up.row(r), dgate.row(i), dup.row(i));
                }
                Activation::Gelu => {
                    gelu_back(isa, dy.row(r), gate.row(r), up.row(r), dgate.row(i), dup.row(i));
                }
            }
        }
    });
}

isa_fn! {
    /// With s = sigmoid(g): silu'(g) = s (1 + g (1 - s)).
    fn silu_back(dy: &[f32], gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let n = dy.len();
        let (gate, up, dgate, dup) = (&gate[..n], &up[..n], &mut dgate[..n], &mut dup[..n]);
        for i in 0..n {
            let g = gate[i];
            let s = 1.0 / (1.0 + exp(-g));
            dgate[i] = dy[i] * up[i] * s * (1.0 + g * (1.0 - s));
            dup[i] = dy[i] * g * s;
        }
    }
}

isa_fn! {
    /// With s = sigmoid(z(g)): gelu'(g) = s (1 + g (1 - s) z'(g)).
    fn gelu_back(dy: &[f32], gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let n = dy.len();
        let (gate, up, dgate, dup) = (&gate[..n], &up[..n], &mut dgate[..n], &mut dup[..n]);
        for i in 0..n {
            let g = gate[i];
            let slope = SLOPE * (1.0 + 3.0 * CUBE * g * g);
            let s = 1.0 / (1.0 + exp(-SLOPE * g * (1.0 + CUBE * g * g)));
            dgate[i] = dy[i] * up[i] * s * (1.0 + g * (1.0 - s) * slope);
            dup[i] = dy[i] * g * s;
        }
    }
}
