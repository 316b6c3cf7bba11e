//! What an adapter is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use planish_model::InitLora;
use planish_train::RunConfig;

use crate::commands::run::settings::{or_default, pairs, set, table};

/// Flags of adapters; what is absent comes from the file or from the defaults.
#[derive(clap::Args)]
pub struct LoraFlags {
    /// An adapter to start from (GGUF file or PEFT directory); its rank, alpha and targets must be the run's
    #[arg(long, value_name = "ADAPTER", conflicts_with_all = ["full", "resume"])]
    init_adapter: Option<PathBuf>,

    #[arg(long, value_name = "N", conflicts_with = "full")]
    #[arg(help = or_default("Rank of the adapter", table().rank))]
    rank: Option<usize>,

    #[arg(long, value_name = "X", conflicts_with = "full")]
    #[arg(help = or_default("The adapter's effect is multiplied by alpha / rank", table().alpha))]
    alpha: Option<f32>,

    #[arg(long, value_name = "NAMES", conflicts_with = "full")]
    #[arg(help = or_default("Matrices that are adapted: q, k, v, o, gate, up, down, all (these seven), embed, output, separated by commas", table().targets))]
    targets: Option<String>,

    /// Multiply the adapter's effect by alpha / sqrt(rank) instead
    #[arg(long, conflicts_with = "full")]
    rslora: bool,

    #[arg(long, value_name = "P", conflicts_with = "full")]
    #[arg(help = or_default("Dropout of the adapter's input", table().dropout))]
    dropout: Option<f32>,

    /// Adapt these blocks only: numbers from 0, and ranges of them, as in 8-15,20 [default: all]
    #[arg(long, value_name = "BLOCKS", conflicts_with = "full")]
    layers: Option<String>,

    /// Targets with another rank, as in q=32,down=8
    #[arg(long, value_name = "TARGET=N,..", value_parser = pairs::<usize>, conflicts_with = "full")]
    rank_pattern: Option<BTreeMap<String, usize>>,

    /// Targets with another alpha, as in q=64,down=16
    #[arg(long, value_name = "TARGET=X,..", value_parser = pairs::<f32>, conflicts_with = "full")]
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
}

const INIT: &str = "Start from a change of nothing, or from the largest singular values of each matrix";

impl LoraFlags {
    /// Puts what is given into the configuration.
    pub fn apply(&self, c: &mut RunConfig) {
        c.init_adapter = self.init_adapter.clone().or(c.init_adapter.take());
        set(&mut c.rank, &self.rank);
        set(&mut c.alpha, &self.alpha);
        set(&mut c.targets, &self.targets);
        c.rslora |= self.rslora;
        set(&mut c.dropout, &self.dropout);
        c.layers = self.layers.clone().or(c.layers.take());
        set(&mut c.rank_pattern, &self.rank_pattern);
        set(&mut c.alpha_pattern, &self.alpha_pattern);
        c.dora |= self.dora;
        set(&mut c.init_lora, &self.init_lora);
        c.loraplus_ratio = self.loraplus_ratio.or(c.loraplus_ratio);
    }
}
