//! The operations: shape rule, forward and backward of each in one file, listed in [`OPS`].
//!
//! An entry brings an example, from which the tests derive finite differences against the double-precision oracle,
//! every kernel against the oracle, and equal bits on any number of threads. A new line is tested by itself.

mod add;
mod attend;
mod embed;
mod example;
mod gated;
mod gather;
mod linear;
mod loss;
mod noise;
mod norm;
mod rope;

pub use add::add;
pub use attend::{Attention, Blocks, attend, attend_blocks};
pub use embed::embed;
pub use example::Example;
pub use gated::gated;
pub use gather::gather;
pub use linear::{Adapter, Dropout, Linear, Magnitude, Norms, linear};
pub use loss::{Scores, Targets, linear_cross_entropy, linear_scores};
pub use noise::noise;
pub use norm::{Norm, norm};
pub use rope::{Rotary, rope};

use crate::tape::{Tape, Var};

/// An operation and a small instance of it.
pub struct Op {
    /// Its name.
    pub name: &'static str,
    /// Records it with parameters from the example; returns what the test differentiates.
    pub example: fn(&mut Tape, &mut Example) -> Var,
    /// What the backward pass of the example differentiates.
    pub objective: Objective,
}

/// The number whose gradient a backward pass computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// The product of the result with a seed.
    Seeded,
    /// This factor times the sum of the result, which is a loss.
    Loss(f32),
}

/// Every operation.
pub static OPS: &[Op] = &[
    Op { name: "add", example: add::example, objective: Objective::Seeded },
    Op { name: "attend", example: attend::example, objective: Objective::Seeded },
    Op { name: "embed", example: embed::example, objective: Objective::Seeded },
    Op { name: "gated", example: gated::example, objective: Objective::Seeded },
    Op { name: "gather", example: gather::example, objective: Objective::Seeded },
    Op { name: "linear", example: linear::example, objective: Objective::Seeded },
    Op { name: "loss", example: loss::example, objective: Objective::Loss(0.125) },
    Op { name: "noise", example: noise::example, objective: Objective::Seeded },
    Op { name: "norm", example: norm::example, objective: Objective::Seeded },
    Op { name: "rope", example: rope::example, objective: Objective::Seeded },
];
