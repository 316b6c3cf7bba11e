//! Qwen3 without experts (Qwen team, 2025): a llama whose queries and keys are normed head by head.

use planish_compute::call::RopeStyle;

use super::Arch;
use crate::dims::{self, Family};

pub const QWEN3: Arch = Arch {
    name: "qwen3",
    hf: &["Qwen3ForCausalLM"],
    spec: |m, weights| dims::from_gguf(m, weights, &FAMILY),
    hf_spec: |config| dims::from_config(config, &FAMILY),
    names: dims::NAMES,
    permuted: false,
};

const FAMILY: Family = Family { name: "qwen3", qk_norm: true, style: RopeStyle::Halves };
