//! Builders for tests, and the files they need: bytes, slices and paths only, so that every crate can use them.
#![forbid(unsafe_code)]

pub mod files;
pub mod gguf_bytes;
pub mod power_loss;
pub mod tiny;
