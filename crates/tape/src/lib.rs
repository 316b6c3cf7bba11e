//! Operations with their gradients, recorded as calls.
//!
//! A [`Tape`] records what a pass computes: each operation in [`ops`] checks shapes, appends its forward calls and
//! leaves a closure that appends its backward calls. [`Tape::backward`] runs the closures in reverse; the result is
//! one list of calls, whose lifetimes give the arena plan ([`Tape::finish`]) before anything has been executed.
//! [`oracle`] executes the same list slowly in double precision: every kernel is tested against it.
#![forbid(unsafe_code)]

pub mod ops;
pub mod oracle;
mod segment;
mod tape;

pub use tape::{Mode, Param, Saved, Tape, Var};
