//! Families of models. A family is one file here and one line in [`ARCHS`].

mod llama;
mod planish;
mod qwen3;

use planish_base::{Error, Result};
use planish_store::gguf::Metadata;

use crate::spec::{LinearId, Role, Spec};
use crate::weights::Weights;

/// A family: how metadata become a [`Spec`], and what its tensors are called.
pub struct Arch {
    /// `general.architecture` in a GGUF file.
    pub name: &'static str,
    /// `architectures` in a Hugging Face `config.json`.
    pub hf: &'static [&'static str],
    /// GGUF metadata to Spec; the tensors tell what metadata leave open.
    pub spec: fn(&Metadata, &Weights) -> Result<Spec>,
    /// `config.json` to Spec.
    pub hf_spec: fn(&serde_json::Value) -> Result<Spec>,
    /// Pairs of (GGUF, Hugging Face) names without `.weight` or `.bias`; `{i}` is the block.
    pub names: &'static [(&'static str, &'static str)],
    /// Rows of q and k lie in GGUF files as interleaved pairs, in Hugging Face files as halves.
    pub permuted: bool,
}

/// Every family.
pub static ARCHS: &[Arch] = &[llama::LLAMA, qwen3::QWEN3, planish::PLANISH];

impl Arch {
    /// The family of this name.
    pub fn named(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.name == name)
    }

    /// The family of a GGUF file.
    ///
    /// # Errors
    /// `missing key` without `general.architecture`, `architecture` for an unknown one.
    pub fn of_gguf(m: &Metadata) -> Result<&'static Arch> {
        let name = m.require_str("general.architecture")?;
        Self::named(name).ok_or_else(|| unknown(name))
    }

    /// The family of a Hugging Face directory.
    ///
    /// # Errors
    /// `architecture` for an unknown one.
    pub fn of_config(config: &serde_json::Value) -> Result<&'static Arch> {
        let name = config["architectures"][0].as_str().unwrap_or("(none)");
        ARCHS.iter().find(|a| a.hf.contains(&name)).ok_or_else(|| unknown(name))
    }

    /// The GGUF name of a matrix, without `.weight`.
    pub fn linear_name(&self, id: LinearId) -> String {
        let part = match id.role {
            Role::Q => "attn_q",
            Role::K => "attn_k",
            Role::V => "attn_v",
            Role::O => "attn_output",
            Role::Gate => "ffn_gate",
            Role::Up => "ffn_up",
            Role::Down => "ffn_down",
            Role::Embed => return "token_embd".to_string(),
            Role::Output => return "output".to_string(),
        };
        format!("blk.{}.{part}", id.layer)
    }

    /// The Hugging Face name of a GGUF tensor.
    pub fn hf_name(&self, gguf: &str) -> Option<String> {
        rename(gguf, self.names.iter().map(|(g, h)| (*g, *h)))
    }

    /// The GGUF name of a Hugging Face tensor.
    pub fn gguf_name(&self, hf: &str) -> Option<String> {
        rename(hf, self.names.iter().map(|(g, h)| (*h, *g)))
    }

    /// Tensors that are folded into the Spec and never multiplied with.
    pub fn is_constant(&self, gguf: &str) -> bool {
        gguf == "rope_freqs.weight"
    }
}

fn unknown(name: &str) -> Error {
    let known: Vec<&str> = ARCHS.iter().map(|a| a.name).collect();
    Error::input("architecture", format!("unknown architecture `{name}`"))
        .with_hint(format!("planish knows {}", known.join(", ")))
}

/// Renames `name` by the first pair of patterns whose left side matches.
fn rename<'a>(name: &str, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Option<String> {
    let stem = [".weight", ".bias"].into_iter().find_map(|s| name.strip_suffix(s).map(|stem| (stem, s)));
    let (stem, suffix) = stem?;
    for (from, to) in pairs {
        let Some((before, after)) = from.split_once("{i}") else {
            if from == stem {
                return Some(format!("{to}{suffix}"));
            }
            continue;
        };
        let layer = stem.strip_prefix(before).and_then(|s| s.strip_suffix(after));
        if let Some(layer) = layer
            && !layer.is_empty()
            && layer.bytes().all(|b| b.is_ascii_digit())
        {
            return Some(format!("{}{suffix}", to.replace("{i}", layer)));
        }
    }
    None
}

/// Range checks of numbers that a file may get wrong; each names key, value and what is allowed.
pub(crate) fn in_range(key: &str, value: usize, low: usize, high: usize) -> Result<usize> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::input("range", format!("`{key}` is {value}, expected {low} to {high}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for arch in ARCHS {
            for (gguf, hf) in arch.names {
                let (gguf, hf) = (gguf.replace("{i}", "12") + ".weight", hf.replace("{i}", "12") + ".weight");
                assert_eq!(arch.hf_name(&gguf).as_deref(), Some(hf.as_str()));
                assert_eq!(arch.gguf_name(&hf).as_deref(), Some(gguf.as_str()));
            }
            assert_eq!(arch.gguf_name("model.layers.x.mlp.up_proj.weight"), None);
            assert_eq!(arch.gguf_name("something"), None);
        }
    }
}
