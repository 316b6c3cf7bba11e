//! Flags that several commands share.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::NonEmptyStringValueParser;
use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Model, SamplerOptions, Stop};
use planish_model::Trainable;

/// Tokens of a prompt that are processed at a time.
const PREFILL: usize = 256;

/// Context of `generate` and `chat` unless asked for more: the KV cache of a whole context can be large.
const CONTEXT: usize = 2048;

/// Which model, and how it is run.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelFlags {
    /// A GGUF file, or a Hugging Face directory (token ids only)
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Longest sequence in tokens [default: what the command needs, within the model's own context]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,

    /// Worker threads [default: as many as the machine runs at once]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

impl ModelFlags {
    /// The engine for one growing sequence.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn session_engine(&self, model: Model) -> Result<Engine> {
        let context = self.context.unwrap_or(model.spec.context.min(CONTEXT));
        self.engine(model, context, PREFILL)
    }

    /// An engine for sequences of up to `context` tokens, `tokens` of them in a pass.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn engine(&self, model: Model, context: usize, tokens: usize) -> Result<Engine> {
        let available = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Engine::new(
            model,
            EngineOptions {
                threads: self.threads.unwrap_or_else(available),
                isa: Isa::detect(),
                context,
                tokens,
                trainable: Trainable::Nothing,
            },
        )
    }
}

/// How the next token is chosen, and when to stop.
#[derive(Clone, Debug, clap::Args)]
pub struct SamplingFlags {
    /// Temperature; 0 takes the most probable token [default: 0 for generate, 0.7 for chat]
    #[arg(long, value_name = "T")]
    pub temp: Option<f32>,

    /// Choose among the K most probable tokens; 0 for all [default: 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Choose among the most probable tokens that together reach P [default: 1]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Choose among tokens at least P times as probable as the best [default: 0 for generate, 0.05 for chat]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,

    /// Make tokens that were already generated less probable; 1 changes nothing [default: 1]
    #[arg(long, value_name = "X")]
    pub repeat_penalty: Option<f32>,

    /// Seed of the random numbers; the same seed gives the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Stop at this text, which is not printed; may be given more than once
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,

    /// Go on after end-of-generation tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingFlags {
    /// The options, over a command's defaults.
    ///
    /// # Errors
    /// Kind `Usage` for a number out of range.
    pub fn options(&self, default: SamplerOptions) -> Result<SamplerOptions> {
        let options = SamplerOptions {
            temperature: self.temp.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            seed: self.seed,
        };
        options.check()?;
        Ok(options)
    }

    /// When to stop, after `tokens` tokens at the latest.
    pub fn stop(&self, tokens: usize) -> Stop {
        Stop { tokens, texts: self.stop.clone(), ignore_end: self.ignore_eos }
    }
}

/// What a chat template may ask for.
#[derive(Clone, Debug, clap::Args)]
pub struct TemplateFlags {
    /// The day that a chat template is told, if it asks for the date
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub date: Option<String>,
}

impl TemplateFlags {
    /// Tells the model's template the date given, or else `default`.
    ///
    /// # Errors
    /// Kind `Usage` when it is not a date.
    pub fn apply(&self, model: &mut Model, default: Option<String>) -> Result<()> {
        if let Some(date) = self.date.clone().or(default)
            && let Some(template) = model.template.take()
        {
            model.template = Some(template.with_date(&date)?);
        }
        Ok(())
    }
}

/// Today in UTC as `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Days since 1970-01-01 to a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms"):
/// years are counted from March, so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// # Errors
/// Kind `Usage` for a token id that the model does not have.
pub fn check_ids(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => {
            let message = format!("token id {id} is not below {vocab}, the size of the model's vocabulary");
            Err(Error::usage("token id", message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        let cases = [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_453, (2025, 12, 31)),
        ];
        for (days, date) in cases {
            assert_eq!(civil(days), date);
        }
    }
}
