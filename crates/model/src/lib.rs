//! What a model is: its shape ([`Spec`]), its tensors ([`Params`]), the one transformer block ([`block`]), low-rank
//! adapters and the KV cache. No file, no optimizer.
//!
//! Read [`block`] first.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod arch;
pub mod block;
pub mod dims;
mod heads;
mod inputs;
mod kv;
mod params;
mod pass;
mod rotary;
mod rows;
mod spec;
mod weights;

pub use adapter::{AdapterSet, AdapterSpec, InitLora, Layers, Pair, PairValues};
pub use arch::{ARCHS, Arch};
pub use heads::head_of;
pub use inputs::{Inputs, Ragged};
pub use kv::KvCache;
pub use params::{LayerParams, LinearParams, Named, Params, Trainable};
pub use pass::{BatchViews, Noise, Pass};
pub use rotary::llama3_factors;
pub use rows::{halve_rows, interleave_rows};
pub use spec::{Layer, LinearId, ROLES, Role, Rope, Spec, TABLES};
pub use weights::{WeightEntry, Weights};
