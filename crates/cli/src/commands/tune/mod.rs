//! `planish tune`: fine-tunes a model.

mod lora;

use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_train::RunConfig;

use super::run::settings::{read, set, start, table};
use super::run::{Command, RunArgs};
use lora::LoraFlags;

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

    #[command(flatten)]
    lora: LoraFlags,

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
        self.lora.apply(&mut c);
        self.run.settings.apply(&mut c)?;
        Ok(c)
    }
}
