//! Shapes that no family of llama.cpp has, such as a llama with a GELU: every choice is a key of the file. The name
//! keeps other programs from computing something else in silence.

use planish_compute::call::RopeStyle;

use super::Arch;
use crate::dims::{self, Family};

pub const PLANISH: Arch = Arch {
    name: "planish",
    hf: &[],
    spec: |m, weights| dims::from_gguf(m, weights, &FAMILY),
    hf_spec: |config| dims::from_config(config, &FAMILY),
    names: dims::NAMES,
    permuted: false,
};

const FAMILY: Family = Family { name: "planish", qk_norm: false, style: RopeStyle::Halves };
