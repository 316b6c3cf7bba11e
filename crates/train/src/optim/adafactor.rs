//! Adafactor (Shazeer and Stern, 2018) with a rate of its own, without first moment: the second moments of a matrix are
//! kept as means over rows and over columns, and an update's root mean square is bounded.
//!
//! A vector is a matrix of one row: its columns are then its elements, and the one row cancels.

use planish_base::math::powf;
use planish_compute::call::{FactoredMoments, FactoredSquares, FactoredStep};

use super::{Optim, OptimSettings, Slot, doubles};

/// The paper's constants: added to squares, exponent of the decay, bound of an update.
const EPS: f64 = 1e-30;
const DECAY: f64 = -0.8;
const LARGEST: f64 = 1.0;

pub const OPTIM: Optim = Optim {
    name: "adafactor",
    uses: &[],
    usual: OptimSettings::USUAL,
    rate: 1.0,
    slots: |t| vec![Slot::vector("rows", t.rows), Slot::vector("cols", t.cols)],
    hyper: |_, lr, t, clip| {
        let new = powf(t as f64, DECAY);
        [lr, 1.0 - new, new, EPS, LARGEST, clip].map(|x| x as f32).to_vec()
    },
    step: |tape, t, hyper| {
        let (grad, param) = (t.shaped(t.grad), t.shaped(t.param));
        let (rows, cols) = (t.slots[0], t.slots[1]);
        let (sums, weight_decay) = (doubles(tape, t.tensor.rows), t.weight_decay);
        tape.call(FactoredMoments { grad, hyper, rows, cols });
        tape.call(FactoredSquares { grad, hyper, rows, cols, sums });
        tape.call(FactoredStep { grad, hyper, rows, cols, sums, param, weight_decay });
    },
    detour: None,
};
