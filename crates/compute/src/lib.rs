//! Buffers, calls and the backends that execute them. No file, no model, no gradient rule: planish-tape decides what
//! is called, this crate how it is computed.
//!
//! A [`Call`] is plain data: which operation, on which [`View`]s, with which shape constants. A [`Program`] is a list
//! of calls whose temporaries have been given places in one arena. A [`Backend`] owns the memory and executes.

// Kernels index lane arrays in lockstep; iterators would hide which lane meets which.
#![allow(clippy::needless_range_loop)]

/// Changes whenever a release computes other bits than the one before on the same path: a checkpoint names it.
pub const NUMERICS_VERSION: u32 = 3;

pub mod backend;
pub mod call;
pub mod cpu;
pub mod dynamic;
mod float_dot;
pub mod int8;
pub mod isa;
mod path;
pub mod profile;
pub mod program;
pub mod quant;
pub mod view;

pub use backend::Backend;
pub use call::Call;
pub use cpu::CpuBackend;
pub use isa::Isa;
pub use program::{Label, Program, Stage};
pub use view::{Home, View};
