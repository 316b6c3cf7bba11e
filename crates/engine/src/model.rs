//! A model as it lies in files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use planish_base::{Error, Result};
use planish_model::{Arch, Spec, Weights};
use planish_store::gguf::{Gguf, Metadata};
use planish_store::safetensors::SafeTensors;
use planish_store::{Bytes, fs};
use planish_text::{ChatTemplate, Tokenizer};

/// `config.json` and index files of a Hugging Face directory are small; larger ones are refused.
const JSON_LIMIT: u64 = 64 << 20;

/// An opened model: shape, tensors, tokenizer and chat template. Weights stay in their files.
pub struct Model {
    /// Where it was opened.
    pub path: PathBuf,
    /// Its family.
    pub arch: &'static Arch,
    /// Its shape.
    pub spec: Spec,
    /// Its tensors by GGUF name.
    pub weights: Weights,
    /// The GGUF file; none for a Hugging Face directory.
    pub gguf: Option<Gguf>,
    /// None where the files have no tokenizer that planish reads; then data must be token ids.
    pub tokenizer: Option<Tokenizer>,
    /// None where the model has no chat template.
    pub template: Option<ChatTemplate>,
    hash: OnceLock<String>,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face directory (`config.json` with safetensors; token ids only).
    ///
    /// # Errors
    /// Kind `Input`, with the path, for everything that is wrong with the files.
    pub fn open(path: &Path) -> Result<Model> {
        match fs::is_dir(path) {
            true => Self::open_directory(path).map_err(|e| e.in_file(path)),
            false => {
                let gguf = Gguf::open(path)?;
                Self::from_gguf(gguf, path).map_err(|e| e.in_file(path))
            }
        }
    }

    /// Refuses a context that the model was not made for.
    ///
    /// # Errors
    /// Kind `Usage` for 0 and for more than the model's own.
    pub fn check_context(&self, context: usize) -> Result<()> {
        let limit = self.spec.context;
        match (1..=limit).contains(&context) {
            true => Ok(()),
            false => Err(Error::usage("context", format!("context {context} is not from 1 to {limit}"))
                .with_hint("the upper limit is the context the model was trained with")),
        }
    }

    fn from_gguf(gguf: Gguf, path: &Path) -> Result<Model> {
        let m = gguf.metadata();
        if m.str("general.type")? == Some("adapter") {
            return Err(Error::input("adapter", "this file is an adapter, not a model")
                .with_hint("give the base model, and this file with --adapter"));
        }
        let arch = Arch::of_gguf(m)?;
        let weights = Weights::from_gguf(&gguf)?;
        let spec = (arch.spec)(m, &weights)?;
        let tokenizer = match m.contains("tokenizer.ggml.model") {
            true => Some(Tokenizer::from_gguf(m)?),
            false => None,
        };
        if let Some(t) = &tokenizer
            && t.vocab_size() > spec.vocab
        {
            let message =
                format!("the tokenizer has {} tokens, the embedding {}", t.vocab_size(), spec.vocab);
            return Err(Error::input("vocab", message));
        }
        let template = match &tokenizer {
            Some(t) => ChatTemplate::from_gguf(m, t)?,
            None => None,
        };
        let (path, gguf, hash) = (path.to_path_buf(), Some(gguf), OnceLock::new());
        Ok(Model { path, arch, spec, weights, gguf, tokenizer, template, hash })
    }

    /// A model of weights alone, without tokenizer and template.
    pub fn from_weights(path: &Path, arch: &'static Arch, spec: Spec, weights: Weights) -> Model {
        Model {
            path: path.to_path_buf(),
            arch,
            spec,
            weights,
            gguf: None,
            tokenizer: None,
            template: None,
            hash: OnceLock::new(),
        }
    }

    fn open_directory(path: &Path) -> Result<Model> {
        let config = read_json(&path.join("config.json"))?;
        let arch = Arch::of_config(&config)?;
        let spec = (arch.hf_spec)(&config)?;
        let mut weights = Weights::default();
        for file in safetensors_files(path)? {
            weights.add_safetensors(arch, &SafeTensors::open(&file)?)?;
        }
        Ok(Self::from_weights(path, arch, spec, weights))
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// `no tokenizer`, with the hint to give token ids.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::input("no tokenizer", format!("{}: the model has no tokenizer", self.path.display()))
                .with_hint("use a GGUF file, or data of the form {\"input_ids\": [...]}")
        })
    }

    /// The chat template.
    ///
    /// # Errors
    /// `no template`, with the hint to give plain text.
    pub fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            Error::input("no template", format!("{}: the model has no chat template", self.path.display()))
                .with_hint(
                    "it is a base model: use prompt/completion or text data, and generate without --chat",
                )
        })
    }

    /// The GGUF metadata.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.gguf.as_ref().map(Gguf::metadata)
    }

    /// The name that the file gives itself, else that of the file.
    pub fn name(&self) -> String {
        let own = self.metadata().and_then(|m| m.str("general.name").ok().flatten()).map(str::to_string);
        own.unwrap_or_else(|| self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
    }

    /// The type of most weights, as ggml names it.
    pub fn weight_type(&self) -> String {
        let mut elements = std::collections::BTreeMap::new();
        for e in self.weights.entries.values().filter(|e| e.rows > 1) {
            *elements.entry(e.dtype).or_insert(0) += e.rows * e.cols;
        }
        elements.into_iter().max_by_key(|(_, n)| *n).map_or_else(String::new, |(t, _)| t.name())
    }

    /// Bytes of all tensors in the files.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.entries.values().map(|e| self.weights.bytes(e).len() as u64).sum()
    }

    /// The SHA-256 of the weights' file, in hexadecimal; of several files, that of their SHA-256s one after the
    /// other. It is computed when first asked for.
    pub fn sha256(&self) -> &str {
        self.hash.get_or_init(|| {
            let hash = match self.files() {
                [file] => fs::sha256(file),
                files => fs::sha256(files.iter().map(|f| fs::sha256(f)).collect::<String>().as_bytes()),
            };
            // The whole file was looked at, also what nobody computes with.
            self.release();
            hash
        })
    }

    /// Lets the mapped files leave the memory; what is used of them comes back by itself.
    pub fn release(&self) {
        self.files().iter().for_each(Bytes::release);
    }

    /// The files that hold the weights, for hashes.
    pub fn files(&self) -> &[Bytes] {
        &self.weights.files
    }
}

fn read_json(path: &Path) -> Result<serde_json::Value> {
    let bytes = fs::read_bounded(path, JSON_LIMIT)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::input("json", format!("{}: {e}", path.display())))
}

/// `model.safetensors`, or the files that the index names, each once.
fn safetensors_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let single = dir.join("model.safetensors");
    let index = dir.join("model.safetensors.index.json");
    if fs::exists(&single) || !fs::exists(&index) {
        return Ok(vec![single]);
    }
    let index = read_json(&index)?;
    let map = index["weight_map"].as_object();
    let map = map.ok_or_else(|| Error::input("json", "model.safetensors.index.json has no `weight_map`"))?;
    let names: std::collections::BTreeSet<&str> = map.values().filter_map(|v| v.as_str()).collect();
    names
        .into_iter()
        .map(|name| match Path::new(name).file_name() {
            // A shard elsewhere in the file system is not this model's.
            Some(own) if own == name => Ok(dir.join(name)),
            _ => Err(Error::input("shard", format!("shard name `{name}` is not a file of this directory"))),
        })
        .collect()
}
