//! New models: from a shape, a seed, and the data or another model, to a GGUF file that a run then trains whole.

mod donor;
mod init;
pub mod preset;
mod shape;

use std::path::Path;

use planish_base::{Error, Result};
use planish_engine::Model;
use planish_store::fs;
use planish_store::gguf::Gguf;
use planish_text::{Tokenizer, Vocab};
use serde::Serialize;

pub use shape::{Lens, ModelConfig, RopeScaling};

use crate::config::RunConfig;
use crate::data;
use donor::{Donor, Embedding};

/// A larger file is no tokenizer.
const TOKENIZER_LIMIT: u64 = 256 << 20;

/// What a new model was made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewModel {
    /// Family of its file.
    pub family: String,
    /// Whether llama.cpp has that family.
    pub for_llama_cpp: bool,
    /// Tokens of its vocabulary.
    pub vocab: usize,
    /// Whether they were learned from the data.
    pub vocab_learned: bool,
    /// Of which the donor has.
    pub matched: Option<usize>,
    /// Width of the donor's embedding, where a lens looks at it.
    pub lens: Option<usize>,
}

/// Writes the new model that `config.model` describes to `path`.
///
/// # Errors
/// Kind `Usage` for a shape that does not fit together; kind `Input` for tokenizer, donor and data.
pub fn create(config: &RunConfig, model: &ModelConfig, path: &Path) -> Result<NewModel> {
    model.check()?;
    let shape = model.resolved()?;
    let donor = shape.donor.as_deref().map(Model::open).transpose()?;
    let (vocab, learned) = vocabulary(config, &shape, donor.as_ref())?;
    let tokens = match &vocab {
        Some(vocab) => vocab.tokens.len(),
        None => shape.vocab_size.unwrap_or(0),
    };
    let mut made = NewModel { vocab: tokens, vocab_learned: learned, ..NewModel::default() };
    let width = shape.width.unwrap_or(0);
    let embedding = match (&donor, &vocab) {
        (Some(donor), Some(vocab)) => {
            let tokenizer = Tokenizer::from_vocab(vocab.clone())?;
            let donor = Donor::new(donor, &tokenizer).map_err(|e| e.in_file(&donor.path))?;
            made.matched = Some(donor.matched());
            donor.embedding(width, shape.lens, config.seed)?
        }
        (Some(_), None) => return Err(Error::usage("donor", "without a tokenizer no token is the donor's")),
        (None, _) => Embedding::Random,
    };
    let spec = shape.spec(tokens, embedding.lens())?;
    made.lens = spec.lens;
    (made.family, made.for_llama_cpp) = (spec.arch.into(), spec.arch != "planish");
    let tokenizer = vocab.map(|v| v.to_gguf()).unwrap_or_default();
    let tensors = init::tensors(&spec, embedding, shape.init_scale, shape.scaled_residuals, shape.qkv_bias);
    init::write(path, &spec, &shape.preset, &tokenizer, &tensors, config.seed)?;
    Ok(made)
}

/// The tokenizer that is given, else the donor's, else one learned from the data, which is said. None for data of
/// token ids.
fn vocabulary(
    config: &RunConfig,
    shape: &ModelConfig,
    donor: Option<&Model>,
) -> Result<(Option<Vocab>, bool)> {
    if let Some(path) = &shape.tokenizer {
        return Ok((Some(read_vocabulary(path).map_err(|e| e.in_file(path))?), false));
    }
    if let Some(donor) = donor.filter(|_| shape.vocab_size.is_none()) {
        let gguf = donor.gguf.as_ref().ok_or_else(|| {
            Error::input("no tokenizer", "the donor is no GGUF file, whose tokenizer could be taken")
                .in_file(&donor.path)
        })?;
        return Ok((Some(Vocab::from_gguf(gguf.metadata())?), false));
    }
    let size = shape.vocab_size.unwrap_or(preset::of(&shape.preset)?.vocab);
    match data::words(config) {
        Ok(words) => Ok((Some(words.learn(size)?), true)),
        // Token ids need no tokenizer, but the number of them must be known.
        Err(e) if e.code() == "no text" && shape.vocab_size.is_some() => Ok((None, false)),
        Err(e) => Err(e),
    }
}

fn read_vocabulary(path: &Path) -> Result<Vocab> {
    if path.extension().is_some_and(|e| e == "json") {
        let config = path.with_file_name("tokenizer_config.json");
        let config =
            if fs::exists(&config) { Some(fs::read_bounded(&config, TOKENIZER_LIMIT)?) } else { None };
        return Vocab::from_tokenizer_json(&fs::read_bounded(path, TOKENIZER_LIMIT)?, config.as_deref());
    }
    if fs::is_dir(path) {
        return read_vocabulary(&path.join("tokenizer.json"));
    }
    Vocab::from_gguf(Gguf::open(path)?.metadata())
}
