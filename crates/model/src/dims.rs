//! What metadata say of families that are shaped like a llama, and metadata of such a shape.

use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_compute::call::{Activation, Heads, RopeStyle};
use planish_compute::quant::Quant;
use planish_store::gguf::{Metadata, OwnedValue};
use serde_json::Value;

use crate::arch::in_range;
use crate::rotary::llama3_factors;
use crate::spec::{Layer, Rope, Spec};
use crate::weights::Weights;

/// Pairs of (GGUF, Hugging Face) names; not every family has each.
pub const NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
    ("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj"),
    ("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj"),
    ("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj"),
    ("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj"),
    ("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm"),
    ("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm"),
    ("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm"),
    ("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj"),
];

/// What a family has that its metadata do not say.
pub struct Family {
    /// Its name, and the prefix of its keys.
    pub name: &'static str,
    /// Queries and keys are normed head by head.
    pub qk_norm: bool,
    /// Which elements of a head turn together, in GGUF files.
    pub style: RopeStyle,
}

const MAX_BLOCKS: usize = 512;
const MAX_WIDTH: usize = 1 << 16;
const MAX_HEAD_WIDTH: usize = 1 << 12;
/// Only in files of the family `planish`: llama.cpp knows one activation a family.
const ACTIVATION: &str = "feed_forward_activation";

/// The numbers both kinds of file give.
struct Dims {
    vocab: usize,
    width: usize,
    context: usize,
    blocks: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    ff: usize,
    norm_eps: f64,
    tied: bool,
    act: Activation,
    qk_norm: bool,
    lens: Option<usize>,
}

impl Dims {
    fn spec(self, arch: &'static str, rope: Rope) -> Result<Spec> {
        in_range("block_count", self.blocks, 1, MAX_BLOCKS)?;
        let heads = Heads {
            query: self.heads,
            kv: self.kv_heads,
            width: self.head_width,
            scale: (1.0 / (self.head_width as f64).sqrt()) as f32,
        };
        let layer = Layer { heads, ff: self.ff, act: self.act, qk_norm: self.qk_norm };
        let spec = Spec {
            arch,
            vocab: self.vocab,
            width: self.width,
            context: self.context,
            tied: self.tied,
            lens: self.lens,
            norm_eps: self.norm_eps as f32,
            rope,
            layers: vec![layer; self.blocks],
        };
        check(&spec)?;
        Ok(spec)
    }
}

/// Refuses numbers that no model has, and those that do not fit together.
///
/// # Errors
/// `range`, with the number and what is allowed.
pub fn check(spec: &Spec) -> Result<()> {
    in_range("block_count", spec.layers.len(), 1, MAX_BLOCKS)?;
    let layer = &spec.layers[0];
    let (heads, rope) = (layer.heads, &spec.rope);
    in_range("vocab_size", spec.vocab, 1, 1 << 24)?;
    in_range("embedding_length", spec.width, 1, MAX_WIDTH)?;
    in_range("feed_forward_length", layer.ff, 1, 1 << 20)?;
    in_range("context_length", spec.context, 1, 1 << 28)?;
    in_range("head_count", heads.query, 1, 1 << 12)?;
    in_range("head_count_kv", heads.kv, 1, heads.query)?;
    in_range("head width", heads.width, 2, MAX_HEAD_WIDTH)?;
    if !heads.query.is_multiple_of(heads.kv) || !heads.width.is_multiple_of(2) {
        let message =
            format!("{} heads of width {} cannot share {} kv heads", heads.query, heads.width, heads.kv);
        return Err(Error::input("range", message));
    }
    let (eps, base) = (spec.norm_eps, rope.base);
    if !(eps > 0.0 && eps < 1.0 && base > 0.0 && base.is_finite()) {
        return Err(Error::input("range", format!("norm epsilon {eps} or rope base {base} is out of range")));
    }
    if rope.factors.iter().any(|f| !(*f > 0.0 && f.is_finite())) {
        return Err(Error::input("range", "a rope frequency factor is not a positive number"));
    }
    Ok(())
}

/// The shape that a GGUF file's keys `FAMILY.*` give, and its tensors where they leave something open.
pub fn from_gguf(m: &Metadata, weights: &Weights, family: &Family) -> Result<Spec> {
    let name = family.name;
    let count = |key: &str| m.require_u32(&format!("{name}.{key}")).map(|v| v as usize);
    let optional = |key: &str| m.u32(&format!("{name}.{key}")).map(|v| v.map(|v| v as usize));
    let (width, heads) = (count("embedding_length")?, count("attention.head_count")?);
    let even_width = width.checked_div(heads).unwrap_or(0);
    let head_width = optional("attention.key_length")?.unwrap_or(even_width);
    let value_width = optional("attention.value_length")?.unwrap_or(head_width);
    let rope_width = optional("rope.dimension_count")?.unwrap_or(head_width);
    if value_width != head_width || rope_width != head_width {
        let message =
            format!("heads of width {head_width} with values of {value_width} and rotation of {rope_width}");
        return Err(
            Error::input("range", message).with_hint(format!("{name} models have one width for all three"))
        );
    }
    if optional("expert_count")?.unwrap_or(0) > 0 {
        return Err(Error::input(
            "architecture",
            format!("mixture of experts is not supported for `{name}`"),
        ));
    }
    // Before memory is taken for half as many factors as a head is wide.
    in_range("embedding_length", width, 1, MAX_WIDTH)?;
    in_range("head width", head_width, 2, MAX_HEAD_WIDTH)?;
    let base = f64::from(m.f32(&format!("{name}.rope.freq_base"))?.unwrap_or(10_000.0));
    let factors = gguf_factors(m, weights, name, head_width)?;
    let act = match m.str(&format!("{name}.{ACTIVATION}"))? {
        None => Activation::Silu,
        Some(act) => activation(act)?,
    };
    let dims = Dims {
        vocab: weights.require("token_embd.weight")?.rows,
        width,
        context: count("context_length")?,
        blocks: count("block_count")?,
        heads,
        kv_heads: optional("attention.head_count_kv")?.unwrap_or(heads),
        head_width,
        ff: count("feed_forward_length")?,
        norm_eps: f64::from(m.require_f32(&format!("{name}.attention.layer_norm_rms_epsilon"))?),
        tied: !weights.entries.contains_key("output.weight"),
        act,
        qk_norm: family.qk_norm || weights.entries.contains_key("blk.0.attn_q_norm.weight"),
        lens: weights.entries.get("lens.proj.weight").map(|e| e.cols),
    };
    dims.spec(name, Rope { base, factors, style: family.style })
}

fn activation(name: &str) -> Result<Activation> {
    Activation::named(name).ok_or_else(|| {
        let known: Vec<&str> = Activation::ALL.iter().map(|(n, _)| *n).collect();
        Error::input("architecture", format!("unknown activation `{name}`"))
            .with_hint(format!("planish knows {}", known.join(", ")))
    })
}

/// The metadata of a file of this shape, which [`from_gguf`] reads back. Divisors of rotary frequencies that are not
/// all the same are a tensor: [`rope_factors`].
pub fn to_gguf(spec: &Spec) -> Vec<(String, OwnedValue)> {
    let layer = &spec.layers[0];
    let number = |key: &str, n: usize| (format!("{}.{key}", spec.arch), OwnedValue::U32(n as u32));
    let float = |key: &str, x: f32| (format!("{}.{key}", spec.arch), OwnedValue::F32(x));
    let text = |key: &str, t: &str| (format!("{}.{key}", spec.arch), OwnedValue::from(t));
    let mut keys = vec![
        ("general.architecture".to_string(), OwnedValue::from(spec.arch)),
        number("vocab_size", spec.vocab),
        number("context_length", spec.context),
        number("embedding_length", spec.width),
        number("block_count", spec.layers.len()),
        number("feed_forward_length", layer.ff),
        number("attention.head_count", layer.heads.query),
        number("attention.head_count_kv", layer.heads.kv),
        number("attention.key_length", layer.heads.width),
        number("attention.value_length", layer.heads.width),
        number("rope.dimension_count", layer.heads.width),
        float("attention.layer_norm_rms_epsilon", spec.norm_eps),
        float("rope.freq_base", spec.rope.base as f32),
    ];
    if let Some(factor) = linear_factor(&spec.rope) {
        keys.extend([text("rope.scaling.type", "linear"), float("rope.scaling.factor", factor as f32)]);
    }
    if layer.act != Activation::Silu {
        keys.push(text(ACTIVATION, layer.act.name()));
    }
    keys
}

/// The one factor above 1 that all frequencies are divided by.
fn linear_factor(rope: &Rope) -> Option<f64> {
    let first = *rope.factors.first()?;
    (first != 1.0 && rope.factors.iter().all(|f| *f == first)).then_some(first)
}

/// The tensor `rope_freqs.weight`, where the divisors differ.
pub fn rope_factors(rope: &Rope) -> Option<Vec<f32>> {
    let same = rope.factors.windows(2).all(|pair| pair[0] == pair[1]);
    (!same).then(|| rope.factors.iter().map(|f| *f as f32).collect())
}

/// Llama 3's scaling comes as a tensor of divisors, linear scaling as a key.
fn gguf_factors(m: &Metadata, weights: &Weights, name: &str, head_width: usize) -> Result<Vec<f64>> {
    if let Some(e) = weights.entries.get("rope_freqs.weight") {
        if e.rows * e.cols != head_width / 2 {
            let message =
                format!("tensor `rope_freqs.weight` has {} values, expected {}", e.cols, head_width / 2);
            return Err(Error::input("shape", message));
        }
        let mut values = vec![0f32; head_width / 2];
        Quant::of(e.dtype)?.decode_range(Isa::Scalar, weights.bytes(e), 0, &mut values);
        return Ok(values.into_iter().map(f64::from).collect());
    }
    let factor = match m.str(&format!("{name}.rope.scaling.type"))?.unwrap_or("none") {
        "none" => 1.0,
        "linear" => f64::from(m.require_f32(&format!("{name}.rope.scaling.factor"))?),
        other => return Err(unknown_scaling(other)),
    };
    Ok(vec![factor; head_width / 2])
}

fn unknown_scaling(name: &str) -> Error {
    Error::input("rope scaling", format!("unknown rope scaling `{name}`"))
        .with_hint("planish knows none, linear and llama3")
}

/// The shape that a Hugging Face `config.json` gives.
pub fn from_config(c: &Value, family: &Family) -> Result<Spec> {
    let count = |key: &str| {
        let value = c[key].as_u64().map(|v| v as usize);
        value.ok_or_else(|| Error::input("missing key", format!("config.json has no number `{key}`")))
    };
    let (width, heads) = (count("hidden_size")?, count("num_attention_heads")?);
    let head_width = c["head_dim"].as_u64().map_or(width.checked_div(heads).unwrap_or(0), |v| v as usize);
    if !c["sliding_window"].is_null() {
        return Err(Error::input("architecture", "a sliding window is not supported"));
    }
    let act = match c["hidden_act"].as_str().unwrap_or("silu") {
        "gelu_pytorch_tanh" => Activation::Gelu,
        // Without the approximation by tanh it is another function.
        "gelu" => {
            return Err(Error::input(
                "architecture",
                "activation `gelu` is supported as gelu_pytorch_tanh only",
            ));
        }
        name => activation(name)?,
    };
    in_range("head width", head_width, 2, MAX_HEAD_WIDTH)?;
    let rope = config_rope(c, head_width)?;
    let dims = Dims {
        vocab: count("vocab_size")?,
        width,
        context: count("max_position_embeddings")?,
        blocks: count("num_hidden_layers")?,
        heads,
        kv_heads: c["num_key_value_heads"].as_u64().map_or(heads, |v| v as usize),
        head_width,
        ff: count("intermediate_size")?,
        norm_eps: c["rms_norm_eps"].as_f64().unwrap_or(1e-6),
        tied: c["tie_word_embeddings"].as_bool().unwrap_or(false),
        act,
        qk_norm: family.qk_norm,
        lens: None,
    };
    dims.spec(family.name, rope)
}

/// transformers 5 writes `rope_parameters`, earlier ones `rope_theta` and `rope_scaling`.
fn config_rope(c: &Value, head_width: usize) -> Result<Rope> {
    let scaling = if c["rope_parameters"].is_object() { &c["rope_parameters"] } else { &c["rope_scaling"] };
    let theta = scaling["rope_theta"].as_f64().or_else(|| c["rope_theta"].as_f64());
    let base = theta.unwrap_or(10_000.0);
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()).unwrap_or("default");
    let number = |key: &str| {
        let value = scaling[key].as_f64();
        value.ok_or_else(|| Error::input("missing key", format!("rope scaling has no number `{key}`")))
    };
    let factors = match kind {
        "default" => vec![1.0; head_width / 2],
        "linear" => vec![number("factor")?; head_width / 2],
        "llama3" => llama3_factors(
            base,
            head_width,
            number("factor")?,
            number("low_freq_factor")?,
            number("high_freq_factor")?,
            number("original_max_position_embeddings")?,
        ),
        other => return Err(unknown_scaling(other)),
    };
    Ok(Rope { base, factors, style: RopeStyle::Halves })
}
