//! What an adapter may have beside rank, alpha and targets.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use planish_model::InitLora;
use planish_train::RunConfig;

use super::settings::{or_default, table};

/// Flags of adapters; what is absent comes from the file or from the defaults.
#[derive(clap::Args)]
pub struct LoraFlags {
    /// Adapt these blocks only: numbers from 0, and ranges of them, as in 8-15,20 [default: all]
    #[arg(long, value_name = "BLOCKS", conflicts_with = "full")]
    layers: Option<String>,

    /// Targets with another rank, as in q=32,down=8
    #[arg(long, value_name = "TARGET=N,..", value_parser = pattern::<usize>, conflicts_with = "full")]
    rank_pattern: Option<BTreeMap<String, usize>>,

    /// Targets with another alpha, as in q=64,down=16
    #[arg(long, value_name = "TARGET=X,..", value_parser = pattern::<f32>, conflicts_with = "full")]
    alpha_pattern: Option<BTreeMap<String, f32>>,

    /// DoRA: train the norms of the adapted rows apart from their directions
    #[arg(long, conflicts_with = "full")]
    dora: bool,

    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(InitLora::NAMES))]
    #[arg(conflicts_with = "full")]
    #[arg(help = or_default(INIT, table().init_lora))]
    init_lora: Option<String>,

    /// LoRA+: the learning rate of every B is X times that of A; usual is 16
    #[arg(long, value_name = "X", conflicts_with = "full")]
    loraplus_ratio: Option<f64>,

    /// NEFTune: noise of this strength on embeddings while training; usual is 5
    #[arg(long, value_name = "X")]
    neftune: Option<f32>,
}

const INIT: &str = "Start from a change of nothing, or from the largest singular values of each matrix";

impl LoraFlags {
    /// Puts what is given into the configuration.
    pub fn resolve(&self, c: &mut RunConfig) {
        c.layers = self.layers.clone().or(c.layers.take());
        if let Some(pattern) = &self.rank_pattern {
            c.rank_pattern.clone_from(pattern);
        }
        if let Some(pattern) = &self.alpha_pattern {
            c.alpha_pattern.clone_from(pattern);
        }
        c.dora |= self.dora;
        if let Some(name) = &self.init_lora {
            c.init_lora.clone_from(name);
        }
        c.neftune = self.neftune.or(c.neftune);
        c.loraplus_ratio = self.loraplus_ratio.or(c.loraplus_ratio);
    }
}

/// `q=32,down=8`.
fn pattern<T: FromStr>(text: &str) -> Result<BTreeMap<String, T>, String> {
    let entry = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_string(), value.trim().parse().ok()?))
    };
    let entries: Option<BTreeMap<_, _>> = text.split(',').map(entry).collect();
    entries.ok_or_else(|| "expected targets with a number each, as in q=32,down=8".to_owned())
}
