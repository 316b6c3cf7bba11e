//! Llama 2 and 3, SmolLM2, Mistral without a window (Touvron et al., 2023): RMS norms before attention and MLP,
//! grouped heads, rotary positions, a SiLU-gated MLP.

use planish_base::Result;
use planish_compute::call::RopeStyle;
use planish_store::gguf::Metadata;

use super::{Arch, Spec, Weights};
use crate::dims::{self, Family};

pub const LLAMA: Arch = Arch {
    name: "llama",
    hf: &["LlamaForCausalLM", "MistralForCausalLM"],
    spec,
    hf_spec: |config| dims::from_config(config, &FAMILY),
    names: dims::NAMES,
    permuted: true,
};

const FAMILY: Family = Family { name: "llama", qk_norm: false, style: RopeStyle::Interleaved };

fn spec(m: &Metadata, weights: &Weights) -> Result<Spec> {
    // Files of toy keep q and k as Hugging Face has them.
    let style = match m.bool("toy.ggml_native")?.unwrap_or(false) {
        true => RopeStyle::Halves,
        false => FAMILY.style,
    };
    dims::from_gguf(m, weights, &Family { style, ..FAMILY })
}
