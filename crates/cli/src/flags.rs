//! Flags that several commands share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_engine::{
    AdapterFile, Binding, Engine, EngineOptions, Model, Precision, SamplerOptions, Stop, check_together,
};
use planish_model::{AdapterSet, Trainable};
use planish_text::{Dataset, LengthPolicy, LoadOptions};

/// Tokens of a prompt that are processed at a time.
pub const PREFILL: usize = 512;

/// Context of `generate` and `chat` unless asked for more: the KV cache of a whole context can be large.
const CONTEXT: usize = 2048;

/// Which model, and how it is run.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelFlags {
    /// A GGUF file, or a Hugging Face directory (token ids only)
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Longest sequence in tokens, at most the model's own context [default: 2048 to generate, else the
    /// longest example]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,

    /// Worker threads [default: as many as the machine runs at once]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// What matrices are multiplied as, but for decoding; auto is bf16, or for prompts 14-bit integers, where the
    /// machine multiplies them faster [default: auto to generate, else f32]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Precision::NAMES))]
    pub precision: Option<String>,
}

impl ModelFlags {
    /// The engine for one growing sequence.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn session_engine(&self, model: Model) -> Result<Engine> {
        let context = self.context.unwrap_or(model.spec.context.min(CONTEXT));
        let precision = Precision::of_prompts(self.precision.as_deref().unwrap_or("auto"), Isa::detect())?;
        self.with_precision(model, context, PREFILL, precision)
    }

    /// An engine for sequences of up to `context` tokens, `tokens` of them in a pass.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn engine(&self, model: Model, context: usize, tokens: usize) -> Result<Engine> {
        let precision = Precision::of(self.precision.as_deref().unwrap_or("f32"), Isa::detect())?;
        self.with_precision(model, context, tokens, precision)
    }

    fn with_precision(
        &self,
        model: Model,
        context: usize,
        tokens: usize,
        precision: Precision,
    ) -> Result<Engine> {
        Engine::new(
            model,
            EngineOptions {
                threads: self.threads.unwrap_or_else(available_threads),
                isa: Isa::detect(),
                context,
                tokens,
                trainable: Trainable::Nothing,
                recompute: false,
                precision,
            },
        )
    }
}

/// Threads that this machine runs at once.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// An adapter and a factor on its effect: `PATH` or `PATH:SCALE`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterArg {
    /// An adapter GGUF or a PEFT directory.
    pub path: PathBuf,
    /// 1 leaves it as it was trained.
    pub scale: f32,
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterArg, String> {
        let (path, scale) = match text.rsplit_once(':').map(|(path, s)| (path, s.parse::<f32>())) {
            Some((path, Ok(scale))) => (path, scale),
            _ => (text, 1.0),
        };
        if path.is_empty() || !scale.is_finite() {
            return Err("expected PATH or PATH:SCALE with a finite scale".to_owned());
        }
        Ok(AdapterArg { path: PathBuf::from(path), scale })
    }
}

/// Which adapters are beside the model.
#[derive(Clone, Debug, clap::Args)]
pub struct AdapterFlags {
    /// A LoRA adapter (GGUF or PEFT directory) and a factor on its effect; may be given more than once
    #[arg(long, value_name = "A[:SCALE]")]
    pub adapter: Vec<AdapterArg>,

    #[command(flatten)]
    pub binding: BindingFlags,
}

/// How closely adapters are bound to their base.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct BindingFlags {
    /// Take adapters that were made for another file of the same model (another type or conversion)
    #[arg(long)]
    pub any_base: bool,
}

impl BindingFlags {
    /// Reads adapters for a model.
    ///
    /// # Errors
    /// As [`AdapterFile::read`].
    pub fn read(&self, adapters: &[AdapterArg], model: &Model) -> Result<Vec<(AdapterFile, f32)>> {
        let binding = if self.any_base { Binding::Loose } else { Binding::Strict };
        let read = |a: &AdapterArg| match AdapterFile::read(&a.path, model, binding) {
            Ok(file) => Ok((file, a.scale)),
            Err(e) if e.code() == "adapter" && e.to_string().contains("SHA-256") => Err(
                e.with_hint("if the base is the same model in another type or conversion, give --any-base")
            ),
            Err(e) => Err(e),
        };
        adapters.iter().map(read).collect()
    }
}

impl AdapterFlags {
    /// Puts the adapters on the engine.
    ///
    /// # Errors
    /// As [`AdapterFile::read`] and [`AdapterFile::attach`].
    pub fn attach(&self, engine: &mut Engine) -> Result<Vec<AdapterSet>> {
        let files = self.binding.read(&self.adapter, &engine.model)?;
        attach(&files, engine)
    }
}

/// Puts adapters on an engine.
///
/// # Errors
/// As [`AdapterFile::attach`], and for several of which one has magnitudes.
pub fn attach(files: &[(AdapterFile, f32)], engine: &mut Engine) -> Result<Vec<AdapterSet>> {
    check_together(files.iter().map(|(file, _)| file))?;
    files.iter().map(|(file, scale)| file.attach(engine, *scale)).collect()
}

/// The parser of `--max-length-policy`.
pub fn length_policy() -> impl TypedValueParser<Value = LengthPolicy> {
    PossibleValuesParser::new(LengthPolicy::ALL.iter().map(|(name, _)| *name)).map(|chosen| {
        let found = LengthPolicy::ALL.iter().find(|(name, _)| *name == chosen);
        found.map_or(LengthPolicy::Error, |(_, policy)| *policy)
    })
}

/// Reads data for a model; `context` is the longest example.
///
/// # Errors
/// As [`planish_text::load`]; `token id` for an id that the model does not have.
pub fn load_data(paths: &[PathBuf], model: &Model, context: usize, policy: LengthPolicy) -> Result<Dataset> {
    let options = LoadOptions { context, policy, vocab: Some(model.spec.vocab), ..LoadOptions::default() };
    let data = planish_text::load(paths, model.tokenizer.as_ref(), model.template.as_ref(), &options)?;
    let vocab = model.spec.vocab;
    // Data of token ids need no tokenizer, so only the model knows which ids exist.
    for e in &data.examples {
        if let Some(i) = e.ids.iter().position(|id| *id as usize >= vocab) {
            let message = format!("{}: token {i} is {}, expected an id below {vocab}", e.place, e.ids[i]);
            return Err(
                Error::input("token id", message).with_hint("the data were made for another tokenizer")
            );
        }
    }
    Ok(data)
}

/// The longest of the examples in tokens.
pub fn longest(data: &Dataset) -> usize {
    data.examples.iter().map(|e| e.ids.len()).max().unwrap_or(1)
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
    fn adapters_have_a_scale() {
        let of = |text: &str| text.parse::<AdapterArg>().map(|a| (a.path.display().to_string(), a.scale));
        assert_eq!(of("a.gguf").unwrap(), ("a.gguf".to_owned(), 1.0));
        assert_eq!(of("a.gguf:0.5").unwrap(), ("a.gguf".to_owned(), 0.5));
        assert_eq!(of("c:dir").unwrap(), ("c:dir".to_owned(), 1.0));
        assert!(of(":2").is_err() && of("a:inf").is_err());
    }
}
