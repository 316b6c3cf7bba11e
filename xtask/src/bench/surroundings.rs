//! What the environment names: the programs and models that a comparison needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::rows::Weights;
use crate::run;

/// What the environment names, by the name that command lines show instead of a path.
pub struct Surroundings {
    paths: BTreeMap<&'static str, PathBuf>,
    pub threads: usize,
    /// Whether PyTorch is measured compiled too.
    pub compiled: bool,
}

pub const PLANISH: &str = "planish";
pub const PYTHON: &str = "$PLANISH_BENCH_PYTHON";
pub const LLAMACPP: &str = "$PLANISH_BENCH_LLAMACPP";
pub const LLAMA_BIN: &str = "$PLANISH_BENCH_LLAMA_BIN";
pub const CANDLE: &str = "$PLANISH_BENCH_CANDLE";
pub const BURN: &str = "$PLANISH_BENCH_BURN";
pub const MODEL: &str = "$PLANISH_BENCH_MODEL";
pub const HF: &str = "$PLANISH_BENCH_HF";
pub const MODELS: &str = "$PLANISH_BENCH_MODELS";
pub const PEERS: &str = "bench/peers";

const VARIABLES: [&str; 8] = [PYTHON, LLAMACPP, LLAMA_BIN, CANDLE, BURN, MODEL, HF, MODELS];

impl Surroundings {
    /// Looks at the environment; what it names must be there.
    pub fn find(root: &Path, threads: usize, compiled: bool) -> Result<Surroundings> {
        let binary = format!("planish{}", std::env::consts::EXE_SUFFIX);
        let mut paths = BTreeMap::from([
            (PLANISH, run::target_directory(root)?.join("release").join(binary)),
            (PEERS, root.join(PEERS)),
        ]);
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name.trim_start_matches('$')).filter(|v| !v.is_empty()) {
                let path = PathBuf::from(value);
                path.metadata().with_context(|| format!("{name} is {}", path.display()))?;
                paths.insert(name, path);
            }
        }
        Ok(Surroundings { paths, threads, compiled })
    }

    /// A word of a command line with the real path.
    pub fn resolve(&self, word: &str) -> String {
        let (first, rest) = match word.rsplit_once('/') {
            Some((folder, file)) => (folder, Some(file)),
            None => (word, None),
        };
        match (self.paths.get(first), rest) {
            (Some(path), None) => path.display().to_string(),
            (Some(path), Some(file)) => path.join(file).display().to_string(),
            (None, _) => word.to_owned(),
        }
    }

    /// The name, if the environment has it.
    pub fn need(&self, name: &'static str) -> Result<&'static str, String> {
        match self.paths.contains_key(name) {
            true => Ok(name),
            false => Err(format!("{} is not set", name.trim_start_matches('$'))),
        }
    }

    /// A file of a folder that the environment names.
    pub fn file(&self, folder: &'static str, file: &str) -> Result<String, String> {
        match self.paths[self.need(folder)?].join(file).is_file() {
            true => Ok(format!("{folder}/{file}")),
            false => Err(format!("{folder} has no {file}")),
        }
    }

    /// The GGUF file of SmolLM2 with weights of this type.
    pub fn gguf(&self, weights: Weights) -> Result<String, String> {
        let file = match weights {
            Weights::Q4_1 => return self.need(MODEL).map(str::to_owned),
            Weights::Q8_0 => "smollm2-Q8_0.gguf",
            Weights::Q4KM => "smollm2-Q4_K_M.gguf",
            Weights::Bf16 => "smollm2-BF16.gguf",
            Weights::F32 => "smollm2-F32.gguf",
        };
        self.file(MODELS, file)
    }

    /// Surroundings in which these names are the folder `/x/y`.
    #[cfg(test)]
    pub fn of(names: &[&'static str]) -> Surroundings {
        let paths = names.iter().map(|name| (*name, PathBuf::from("/x/y"))).collect();
        Surroundings { paths, threads: 2, compiled: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_paths() {
        let s = Surroundings::of(&[MODELS, MODEL, PEERS]);
        assert_eq!(s.resolve("$PLANISH_BENCH_MODEL"), "/x/y");
        assert_eq!(s.resolve("$PLANISH_BENCH_MODELS/a.gguf"), "/x/y/a.gguf");
        assert_eq!(s.resolve("bench/peers/llama.py"), "/x/y/llama.py");
        assert_eq!(s.resolve("--only"), "--only");
    }
}
