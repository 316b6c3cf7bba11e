//! Bytes that strangers wrote: GGUF and safetensors files, bounded text, and files written so that a crash never
//! leaves half of one behind.
//!
//! - [`Bytes`]: a read-only memory map or an owned vector, cheap to clone.
//! - [`gguf`]: the GGUF reader (versions 1 to 3, little endian) and writer (version 3).
//! - [`safetensors`]: the safetensors reader and writer.
//! - [`fs`]: the only place in planish that touches the file system; [`process`] asks it about memory.
//!
//! Everything is validated before it is constructed, nothing is allocated from a count that a file declares before
//! that count has been compared with the bytes that remain, and a malformed file is an [`Error`], never a panic. This
//! crate knows what a tensor's bytes are and not what they mean.
//!
//! The one exception is a file that somebody else truncates or rewrites **while it is mapped**: reading a page that
//! no longer exists ends the process with SIGBUS, as in every program that maps files. Writers in this crate never
//! do that to anybody: they replace files by rename.
#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub mod fs;
pub mod gguf;
mod mmap;
pub mod process;
pub mod safetensors;

pub use mmap::Bytes;
pub use planish_base::{Error, Kind, Result, TypeId};
