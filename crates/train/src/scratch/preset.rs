//! Shapes with a name, and how models of that size are usually trained.

use planish_base::{Error, Result};

/// A shape with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of the MLP.
    pub ff: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Optimizer.
    pub optimizer: &'static str,
    /// Schedule of the learning rate.
    pub schedule: &'static str,
    /// Highest learning rate.
    pub lr: f64,
    /// Optimizer steps.
    pub steps: usize,
    /// Sequences of a step.
    pub batch_size: usize,
}

/// Every preset, the default first.
pub static PRESETS: &[Preset] = &[
    Preset {
        name: "mini",
        vocab: 2048,
        context: 256,
        width: 96,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        ff: 256,
        rope_base: 10_000.0,
        // Muon finds within a thousand steps that names come back, where AdamW needs several times as many.
        optimizer: "muon",
        schedule: "linear",
        lr: 0.01,
        steps: 1400,
        batch_size: 8,
    },
    Preset {
        name: "tiny",
        vocab: 627,
        context: 32,
        width: 64,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        ff: 128,
        rope_base: 10_000.0,
        optimizer: "adamw",
        schedule: "cosine",
        lr: 4e-3,
        steps: 500,
        batch_size: 16,
    },
    Preset {
        name: "mid",
        vocab: 4096,
        context: 256,
        width: 256,
        layers: 8,
        heads: 8,
        kv_heads: 8,
        ff: 1024,
        rope_base: 10_000.0,
        optimizer: "adamw",
        schedule: "cosine",
        lr: 1e-3,
        steps: 2_000,
        batch_size: 16,
    },
    Preset {
        name: "smollm2-135m",
        vocab: 49_152,
        context: 8192,
        width: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        ff: 1536,
        rope_base: 100_000.0,
        optimizer: "adamw",
        schedule: "cosine",
        lr: 6e-4,
        steps: 10_000,
        batch_size: 32,
    },
];

/// The preset of this name.
///
/// # Errors
/// Kind `Usage`, with the names that there are.
pub fn of(name: &str) -> Result<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name).ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
        Error::usage("preset", format!("unknown preset `{name}`"))
            .with_hint(format!("presets are {}", names.join(", ")))
    })
}
