//! `planish tune`: fine-tunes a model.

use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_train::RunConfig;

use super::run::settings::{or_default, read, set, start, table};
use super::run::{Command, RunArgs};

/// Fine-tune a model on data: an adapter (LoRA), or with --full every weight
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file, or a Hugging Face directory (token ids only)
    #[arg(value_name = "MODEL", required_unless_present_any = ["config", "resume"])]
    model: Option<PathBuf>,

    /// Files of JSON lines (messages, prompt/completion, text, or input_ids), of text, or of token ids (.bin, .toyc);
    /// patterns of files, such as 'data/*.txt'; `-` for standard input
    #[arg(value_name = "DATA", required_unless_present_any = ["config", "resume"])]
    data: Vec<PathBuf>,

    /// Train every weight instead of an adapter; the result is a whole model
    #[arg(long)]
    full: bool,

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
    #[arg(help = or_default("Matrices that are adapted: q, k, v, o, gate, up, down, separated by commas, or all", table().targets))]
    targets: Option<String>,

    /// Multiply the adapter's effect by alpha / sqrt(rank) instead
    #[arg(long, conflicts_with = "full")]
    rslora: bool,

    #[arg(long, value_name = "P", conflicts_with = "full")]
    #[arg(help = or_default("Dropout of the adapter's input", table().dropout))]
    dropout: Option<f32>,

    #[command(flatten)]
    run: RunArgs,
}

impl Command for Args {
    const NAME: &'static str = "tune";

    fn shared(&self) -> &RunArgs {
        &self.run
    }

    fn config(&self, stored: Option<RunConfig>) -> Result<RunConfig> {
        let file = self.run.settings.config.as_deref().map(read).transpose()?;
        let mut c = start(file.as_ref(), stored, table())?;
        set(&mut c.base, &self.model);
        if !self.data.is_empty() {
            c.data.clone_from(&self.data);
        }
        if c.model.is_none() && (c.base.as_os_str().is_empty() || c.data.is_empty()) {
            return Err(Error::usage("model", "neither the command line nor the file names model and data"));
        }
        c.full |= self.full;
        c.init_adapter = self.init_adapter.clone().or(c.init_adapter);
        set(&mut c.rank, &self.rank);
        set(&mut c.alpha, &self.alpha);
        set(&mut c.targets, &self.targets);
        c.rslora |= self.rslora;
        set(&mut c.dropout, &self.dropout);
        self.run.settings.apply(&mut c)?;
        Ok(c)
    }
}
