//! Builders for tests: bytes, slices and closures only, so that every crate can use them.
#![forbid(unsafe_code)]

pub mod gguf_bytes;
