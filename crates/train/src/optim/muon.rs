//! Muon (Jordan, 2024): the momentum of a matrix is made orthogonal, so that all its directions move alike; AdamW for
//! vectors, embedding and head.
//!
//! A direction is scaled by 0.2 sqrt(max(rows, columns)), which gives it the size of AdamW's, so that one learning rate
//! and one weight decay serve both (Liu et al., 2025).

use planish_compute::View;
use planish_compute::call::{
    Add, Along, Descend, MatMul, Momentum, Normalise, Product, SUM_BLOCK, Store, SumSquares,
};
use planish_tape::Tape;

use super::{Class, Optim, OptimSettings, Slot, Tensor, Trained, adamw, doubles};

/// Numbers of AdamW's step; those of Muon's follow.
const ADAMW: usize = 9;
const ITERATIONS: usize = 5;
/// Of x -> a x + b x^3 + c x^5, which takes singular values of (0, 1] to about 1 in five iterations.
const POLYNOMIAL: (f32, f32, f32) = (3.4445, -4.7750, 2.0315);
/// Smallest norm that a direction is divided by.
const EPS: f32 = 1e-7;

pub const OPTIM: Optim = Optim {
    name: "muon",
    uses: &["betas", "momentum"],
    usual: OptimSettings { momentum: 0.95, ..OptimSettings::USUAL },
    slots,
    hyper: |s, lr, t, clip| {
        let muon = [lr, s.momentum, clip].map(|x| x as f32);
        [adamw::hyper(s, lr, t, clip), muon.to_vec()].concat()
    },
    step,
    ..adamw::OPTIM
};

fn is_orthogonalised(t: &Tensor) -> bool {
    t.class == Class::Map && !t.is_vector()
}

fn slots(t: &Tensor) -> Vec<Slot> {
    match is_orthogonalised(t) {
        true => vec![Slot::vector("m", t.elements())],
        false => adamw::slots(t),
    }
}

fn step(tape: &mut Tape, t: &Trained, hyper: View) {
    if !is_orthogonalised(&t.tensor) {
        return adamw::step(tape, t, hyper.columns(0, ADAMW));
    }
    let (hyper, n) = (hyper.columns(ADAMW, hyper.cols - ADAMW), t.tensor.elements());
    let out = tape.temp(1, n);
    tape.call(Momentum { grad: t.grad, hyper, m: t.slots[0], out });
    let sums = doubles(tape, n.div_ceil(SUM_BLOCK));
    tape.call(SumSquares { x: out, out: sums });
    tape.call(Normalise { sums, x: out, eps: EPS });
    let direction = super::flat(orthogonal(tape, t.shaped(out)));
    let scale = 0.2 * (t.tensor.rows.max(t.tensor.cols) as f32).sqrt();
    tape.call(Descend { direction, hyper, param: t.param, scale, weight_decay: t.weight_decay });
}

/// U V' of X = U S V', about: Newton-Schulz iteration from an X of norm 1.
fn orthogonal(tape: &mut Tape, x: View) -> View {
    let (a, b, c) = POLYNOMIAL;
    let tall = x.rows > x.cols;
    let small = x.rows.min(x.cols);
    // X X' of a wide matrix, X' X of a tall one: the smaller.
    let along = if tall { Along::Outer } else { Along::K };
    let mut x = x;
    for _ in 0..ITERATIONS {
        let (gram, poly, next) =
            (tape.temp(small, small), tape.temp(small, small), tape.temp(x.rows, x.cols));
        product(tape, (x, along), (x, along), gram, 1.0);
        // b G + c G^2; G is its own transpose.
        product(tape, (gram, Along::K), (gram, Along::K), poly, c);
        tape.call(Add { a: poly, b: gram, y: poly, scale: b });
        match tall {
            true => product(tape, (x, Along::K), (poly, Along::K), next, 1.0),
            false => product(tape, (poly, Along::K), (x, Along::Outer), next, 1.0),
        }
        tape.call(Add { a: next, b: x, y: next, scale: a });
        x = next;
    }
    x
}

fn product(tape: &mut Tape, (a, a_along): (View, Along), (b, b_along): (View, Along), c: View, scale: f32) {
    let (store, product) = (Store::Replace, Product::Packed);
    tape.call(MatMul { a, b, c, a_along, b_along, scale, store, product });
}
