//! The leaf of the house: what every other crate may use and what depends on nothing.
//!
//! [`Error`] is the one error type of all library crates, [`layout`] the sizes of every ggml type,
//! [`rng`] the counter-based generator, [`math`] elementary functions with the same bits everywhere,
//! [`cancel`] the token that stops a long computation between two calls.
#![forbid(unsafe_code)]

pub mod cancel;
pub mod error;
pub mod layout;
pub mod math;
pub mod rng;

pub use cancel::CancelToken;
pub use error::{Error, Kind, Result};
pub use layout::{TypeId, TypeLayout};
