//! `planish train`: trains a new model.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use planish_base::{Error, Result};
use planish_text::LengthPolicy;
use planish_train::scratch::Lens;
use planish_train::{ModelConfig, PRESETS, RunConfig};

use super::run::settings::{or_default, read, start};
use super::run::{Command, RunArgs};

/// Train a new model from scratch, without DATA on the built-in corpus of short stories
#[derive(clap::Args)]
pub struct Args {
    /// Files of text, of JSON lines (text, messages, prompt/completion, or input_ids), or of token ids (.bin, .toyc);
    /// patterns of files, such as 'data/*.txt'; `-` for standard input [default: the built-in corpus]
    #[arg(value_name = "DATA")]
    data: Vec<PathBuf>,

    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PRESETS.iter().map(|p| p.name)))]
    #[arg(help = or_default("Shape of the model, and usual settings; a [model] table in --config changes single numbers", PRESETS[0].name))]
    preset: Option<String>,

    /// A model or tokenizer.json whose tokenizer the new model gets [default: one learned from the data]
    #[arg(long, value_name = "FILE", conflicts_with = "vocab_size")]
    tokenizer: Option<PathBuf>,

    /// Tokens of a tokenizer that is learned from the data [default: the preset's]
    #[arg(long, value_name = "N")]
    vocab_size: Option<usize>,

    /// A model whose embedding the new one begins with, token by token; also its tokenizer, if none is given
    #[arg(long, value_name = "MODEL")]
    donor: Option<PathBuf>,

    /// Keep a donor's embedding of another width as it is and learn a projection of it, which begins random or as its
    /// principal components
    #[arg(long, value_name = "random|pca", requires = "donor", num_args = 0..=1, default_missing_value = "random", value_parser = lens())]
    lens: Option<Lens>,

    /// Go on training all weights of a model that is there
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["preset", "tokenizer", "vocab_size", "donor", "lens", "resume"])]
    init_from: Option<PathBuf>,

    #[command(flatten)]
    run: RunArgs,
}

/// Flags whose defaults come with the preset.
const OF_PRESET: &[&str] = &["steps", "batch_size", "micro_batch", "lr", "schedule", "optimizer", "context"];

/// Says in the help which defaults are not those of `tune`.
pub fn with_own_defaults(mut command: clap::Command) -> clap::Command {
    let c = RunConfig::of_new_model(PRESETS[0].name).unwrap_or_default();
    let (b1, b2) = c.betas.unwrap_or_default();
    let others = [
        ("max_length_policy", "split".to_string()),
        ("weight_decay", c.weight_decay.to_string()),
        ("betas", format!("{b1},{b2}")),
        ("sample_prompt", "none: a text from its beginning".to_string()),
    ];
    let of_preset = OF_PRESET.iter().map(|id| (*id, "the preset's".to_string()));
    for (id, default) in of_preset.chain(others) {
        command = command.mut_arg(id, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let text = help.split(" [default:").next().unwrap_or_default();
            let text = format!("{text} [default: {default}]");
            arg.help(text)
        });
    }
    command
}

fn lens() -> impl TypedValueParser<Value = Lens> {
    PossibleValuesParser::new(["random", "pca"])
        .map(|name| if name == "pca" { Lens::Pca } else { Lens::Random })
}

impl Command for Args {
    const NAME: &'static str = "train";

    fn shared(&self) -> &RunArgs {
        &self.run
    }

    fn config(&self, stored: Option<RunConfig>) -> Result<RunConfig> {
        let file = self.run.settings.config.as_deref().map(read).transpose()?;
        let model = file.as_ref().and_then(|f| f.get("model")).and_then(toml::Value::as_table);
        let named = model.and_then(|m| m.get("preset")).and_then(toml::Value::as_str);
        let preset = self.preset.as_deref().or(named).unwrap_or(PRESETS[0].name);
        let defaults = match &self.init_from {
            None => RunConfig::of_new_model(preset)?,
            // A model that knows something is taught gently.
            Some(_) => {
                RunConfig { full: true, max_length_policy: LengthPolicy::Split, ..RunConfig::default() }
            }
        };
        let mut c = start(file.as_ref(), stored, defaults)?;
        if !self.data.is_empty() {
            c.data.clone_from(&self.data);
        }
        if let Some(base) = &self.init_from {
            (c.base, c.model) = (base.clone(), None);
            if c.data.is_empty() {
                return Err(Error::usage("no data", "a model that is there needs data to go on with"));
            }
        }
        if let Some(m) = &mut c.model {
            self.shape(m);
            // The sequences of a new model are as long as it is made for.
            m.context = self.run.settings.context.or(m.context);
        }
        self.run.settings.apply(&mut c)?;
        Ok(c)
    }
}

impl Args {
    fn shape(&self, m: &mut ModelConfig) {
        if let Some(preset) = &self.preset {
            m.preset.clone_from(preset);
        }
        m.tokenizer = self.tokenizer.clone().or(m.tokenizer.take());
        m.vocab_size = self.vocab_size.or(m.vocab_size);
        m.donor = self.donor.clone().or(m.donor.take());
        m.lens = self.lens.or(m.lens);
    }
}
