//! The `[model]` table of a run's settings: the shape of a new model, and what its first values come from.

use std::path::PathBuf;

use planish_base::{Error, Kind, Result};
use planish_compute::call::{Activation, Heads, RopeStyle};
use planish_model::{Layer, Rope, Spec, dims, llama3_factors};
use serde::{Deserialize, Serialize};

use super::preset;

/// How the projection lens begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lens {
    /// Normal values of deviation 1 / sqrt(donor width).
    Random,
    /// The principal components of the donor's embedding.
    Pca,
}

/// Scaling of rotary frequencies, for contexts beyond the base's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// All frequencies divided by one factor.
    Linear {
        /// It.
        factor: f64,
    },
    /// As Llama 3: long waves alone.
    Llama3 {
        /// What long waves are divided by.
        factor: f64,
        /// Waves longer than the original context by this are long.
        low_freq_factor: f64,
        /// Waves shorter than the original context by this are kept.
        high_freq_factor: f64,
        /// The context before scaling.
        original_context: f64,
    },
}

/// A new model. What is not given is the preset's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A line of PRESETS.
    pub preset: String,
    /// A model or tokenizer.json whose tokenizer is taken; without it one is trained on the data.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a tokenizer that is trained on the data, the special ones included.
    pub vocab_size: Option<usize>,
    /// A model whose embedding the new one begins with.
    pub donor: Option<PathBuf>,
    /// How a donor's embedding of another width is projected.
    pub lens: Option<Lens>,
    /// Longest sequence.
    pub context: Option<usize>,
    /// Width of the residual stream.
    pub width: Option<usize>,
    /// Blocks.
    pub layers: Option<usize>,
    /// Query heads.
    pub heads: Option<usize>,
    /// Key and value heads; divides `heads`.
    pub kv_heads: Option<usize>,
    /// Width of a head; without it width / heads.
    pub head_width: Option<usize>,
    /// Width of the MLP.
    pub ff: Option<usize>,
    /// Whether the head is the embedding; without it yes, unless there is a lens.
    pub tied: Option<bool>,
    /// Whether query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether queries and keys are normed head by head.
    pub qk_norm: bool,
    /// Activation of the MLP: silu or gelu.
    pub activation: String,
    /// Base of the rotary frequencies.
    pub rope_base: Option<f64>,
    /// Their scaling.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square in every norm.
    pub norm_eps: f64,
    /// Factor on the deviation of the blocks' first values.
    pub init_scale: f64,
    /// Whether what writes into the residual stream begins smaller by sqrt(2 x layers) (Radford et al., 2019).
    pub scaled_residuals: bool,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            preset: preset::PRESETS[0].name.into(),
            tokenizer: None,
            vocab_size: None,
            donor: None,
            lens: None,
            context: None,
            width: None,
            layers: None,
            heads: None,
            kv_heads: None,
            head_width: None,
            ff: None,
            tied: None,
            qkv_bias: false,
            qk_norm: false,
            activation: Activation::Silu.name().into(),
            rope_base: None,
            rope_scaling: None,
            norm_eps: 1e-5,
            init_scale: 1.0,
            scaled_residuals: false,
        }
    }
}

impl ModelConfig {
    /// The same table with the preset's numbers written out.
    ///
    /// # Errors
    /// Kind `Usage` for an unknown preset.
    pub fn resolved(&self) -> Result<ModelConfig> {
        let p = preset::of(&self.preset)?;
        let width = self.width.unwrap_or(p.width);
        let heads = self.heads.unwrap_or(p.heads);
        // Another number of heads with the preset's kv heads may not divide.
        let kv_heads = self.kv_heads.unwrap_or(if self.heads.is_some() { heads } else { p.kv_heads });
        let path = |path: &Option<PathBuf>| path.as_deref().map(crate::config::absolute);
        Ok(ModelConfig {
            tokenizer: path(&self.tokenizer),
            donor: path(&self.donor),
            context: Some(self.context.unwrap_or(p.context)),
            width: Some(width),
            layers: Some(self.layers.unwrap_or(p.layers)),
            heads: Some(heads),
            kv_heads: Some(kv_heads),
            head_width: Some(self.head_width.unwrap_or(width.checked_div(heads).unwrap_or(0))),
            ff: Some(self.ff.unwrap_or(p.ff)),
            tied: Some(self.tied.unwrap_or(self.lens.is_none())),
            rope_base: Some(self.rope_base.unwrap_or(p.rope_base)),
            ..self.clone()
        })
    }

    /// Checks what does not depend on files.
    ///
    /// # Errors
    /// Kind `Usage`, naming the setting.
    pub fn check(&self) -> Result<()> {
        let c = self.resolved()?;
        let bad = |what: String| Err(Error::usage("model", what));
        if self.lens.is_some() && self.donor.is_none() {
            return Err(Error::usage("model", "lens projects a donor's embedding, and there is no donor")
                .with_hint("name one with --donor MODEL"));
        }
        if self.lens.is_some() && c.tied == Some(true) {
            return Err(Error::usage("model", "with a lens the head cannot be the embedding")
                .with_hint("leave `tied` out, or say false"));
        }
        if self.tokenizer.is_some() && self.vocab_size.is_some() {
            return bad("vocab-size is for a tokenizer that is trained here, and one is given".into());
        }
        let (width, heads) = (c.width.unwrap_or(0), c.heads.unwrap_or(0));
        if self.head_width.is_none() && (heads == 0 || !width.is_multiple_of(heads)) {
            return bad(format!("width {width} is no multiple of {heads} heads; give head_width"));
        }
        if !(c.init_scale > 0.0 && c.init_scale.is_finite()) {
            return bad(format!("init_scale is {}, expected more than 0", c.init_scale));
        }
        // The shape is checked as a whole; these numbers are needed before there is one.
        let limits =
            [("layers", c.layers, 512), ("width", c.width, 1 << 16), ("head_width", c.head_width, 1 << 12)];
        for (name, value, most) in limits {
            let value = value.unwrap_or(0);
            if !(1..=most).contains(&value) {
                return bad(format!("{name} is {value}, expected 1 to {most}"));
            }
        }
        activation(&self.activation).map(|_| ())
    }

    /// The shape of the model with a vocabulary of `vocab` tokens, whose embedding is `lens` wide where it is projected.
    ///
    /// # Errors
    /// As [`ModelConfig::check`].
    pub fn spec(&self, vocab: usize, lens: Option<usize>) -> Result<Spec> {
        self.check()?;
        let c = self.resolved()?;
        let number = |value: Option<usize>| value.unwrap_or(0);
        let (query, kv, head_width) = (number(c.heads), number(c.kv_heads), number(c.head_width));
        let act = activation(&c.activation)?;
        let (arch, style) = family(act, c.qk_norm, c.qkv_bias);
        let base = c.rope_base.unwrap_or(0.0);
        let factors = match c.rope_scaling {
            None => vec![1.0; head_width / 2],
            Some(RopeScaling::Linear { factor }) => vec![factor; head_width / 2],
            Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context }) => {
                llama3_factors(base, head_width, factor, low_freq_factor, high_freq_factor, original_context)
            }
        };
        let scale = (1.0 / (head_width as f64).sqrt()) as f32;
        let heads = Heads { query, kv, width: head_width, scale };
        let layer = Layer { heads, ff: number(c.ff), act, qk_norm: c.qk_norm };
        let spec = Spec {
            arch,
            vocab,
            width: number(c.width),
            context: number(c.context),
            tied: c.tied.unwrap_or(true),
            lens,
            norm_eps: c.norm_eps as f32,
            rope: Rope { base, factors, style },
            layers: vec![layer; number(c.layers)],
        };
        dims::check(&spec).map_err(|e| e.with_kind(Kind::Usage).at("the new model"))?;
        Ok(spec)
    }
}

/// The family that has all of this; where none of llama.cpp's has, the one that only planish reads.
fn family(act: Activation, qk_norm: bool, qkv_bias: bool) -> (&'static str, RopeStyle) {
    match (act, qk_norm, qkv_bias) {
        (Activation::Silu, false, _) => ("llama", RopeStyle::Interleaved),
        (Activation::Silu, true, false) => ("qwen3", RopeStyle::Halves),
        _ => ("planish", RopeStyle::Halves),
    }
}

fn activation(name: &str) -> Result<Activation> {
    Activation::named(name).ok_or_else(|| {
        let names: Vec<&str> = Activation::ALL.iter().map(|(n, _)| *n).collect();
        Error::usage("model", format!("activation is `{name}`, expected {}", names.join(" or ")))
    })
}
