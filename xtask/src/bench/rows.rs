//! What is compared: a row is one piece of work for planish and its peers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run;

/// One piece of work.
pub struct Row {
    /// Its name on the command line.
    pub id: &'static str,
    pub work: Work,
}

pub enum Work {
    Train {
        what: What,
        precision: Precision,
        batch: usize,
        length: usize,
    },
    /// Reading 512 tokens.
    Prefill(Weights),
    /// Writing 128 tokens after 512.
    Decode(Weights),
    /// From before the model is opened to its first token.
    Load(Weights),
    /// f32 products.
    Gemm,
}

pub enum What {
    /// Rank 16 on all seven maps of a block.
    LoraAll,
    /// Rank 16 on query and value.
    LoraQv,
    Full,
}

#[derive(PartialEq, Eq)]
pub enum Precision {
    F32,
    Bf16,
}

impl Precision {
    fn name(&self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }
}

/// The type of a GGUF file's weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    Q4_1,
    Q8_0,
    Q4KM,
    Bf16,
    F32,
}

const fn train(id: &'static str, what: What, precision: Precision, batch: usize, length: usize) -> Row {
    Row { id, work: Work::Train { what, precision, batch, length } }
}

const fn row(id: &'static str, work: Work) -> Row {
    Row { id, work }
}

/// Every row.
pub static ROWS: &[Row] = &[
    train("lora-f32-b1", What::LoraAll, Precision::F32, 1, 512),
    train("lora-f32-b4", What::LoraAll, Precision::F32, 4, 256),
    train("lora-qv-f32-b1", What::LoraQv, Precision::F32, 1, 512),
    train("full-f32-b1", What::Full, Precision::F32, 1, 512),
    train("full-f32-b4", What::Full, Precision::F32, 4, 256),
    train("lora-bf16-b1", What::LoraAll, Precision::Bf16, 1, 512),
    train("lora-bf16-b4", What::LoraAll, Precision::Bf16, 4, 256),
    train("lora-qv-bf16-b1", What::LoraQv, Precision::Bf16, 1, 512),
    train("full-bf16-b1", What::Full, Precision::Bf16, 1, 512),
    train("full-bf16-b4", What::Full, Precision::Bf16, 4, 256),
    row("decode-q4_1", Work::Decode(Weights::Q4_1)),
    row("decode-q8_0", Work::Decode(Weights::Q8_0)),
    row("decode-q4_k_m", Work::Decode(Weights::Q4KM)),
    row("decode-bf16", Work::Decode(Weights::Bf16)),
    row("decode-f32", Work::Decode(Weights::F32)),
    row("prefill-q4_1", Work::Prefill(Weights::Q4_1)),
    row("prefill-q8_0", Work::Prefill(Weights::Q8_0)),
    row("prefill-bf16", Work::Prefill(Weights::Bf16)),
    row("load-q4_1", Work::Load(Weights::Q4_1)),
    row("gemm", Work::Gemm),
];

/// The shapes of `planish bench --only matrix`.
const SHAPES: [&str; 5] = ["512,576,576", "512,576,1536", "512,1536,576", "512,576,49152", "512,2048,2048"];

/// The row of this name.
pub fn of(id: &str) -> Result<&'static Row> {
    ROWS.iter().find(|row| row.id == id).with_context(|| {
        let known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        format!("no row '{id}'; there are {}", known.join(", "))
    })
}

/// What the environment names, by the name that command lines show instead of a path.
pub struct Surroundings {
    paths: BTreeMap<&'static str, PathBuf>,
    threads: usize,
}

const PLANISH: &str = "planish";
const PYTHON: &str = "$PLANISH_BENCH_PYTHON";
const LLAMACPP: &str = "$PLANISH_BENCH_LLAMACPP";
const MODEL: &str = "$PLANISH_BENCH_MODEL";
const HF: &str = "$PLANISH_BENCH_HF";
const MODELS: &str = "$PLANISH_BENCH_MODELS";
const PEERS: &str = "bench/peers";

impl Surroundings {
    /// Looks at the environment; what it names must be there.
    pub fn find(root: &Path, threads: usize) -> Result<Surroundings> {
        let binary = format!("planish{}", std::env::consts::EXE_SUFFIX);
        let mut paths = BTreeMap::from([
            (PLANISH, run::target_directory(root)?.join("release").join(binary)),
            (PEERS, root.join(PEERS)),
        ]);
        for name in [PYTHON, LLAMACPP, MODEL, HF, MODELS] {
            if let Some(value) = std::env::var_os(name.trim_start_matches('$')).filter(|v| !v.is_empty()) {
                let path = PathBuf::from(value);
                path.metadata().with_context(|| format!("{name} is {}", path.display()))?;
                paths.insert(name, path);
            }
        }
        Ok(Surroundings { paths, threads })
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

    fn need(&self, name: &'static str) -> Result<&'static str, String> {
        match self.paths.contains_key(name) {
            true => Ok(name),
            false => Err(format!("{} is not set", name.trim_start_matches('$'))),
        }
    }

    /// The GGUF file of this type.
    fn gguf(&self, weights: Weights) -> Result<String, String> {
        let file = match weights {
            Weights::Q4_1 => return self.need(MODEL).map(str::to_owned),
            Weights::Q8_0 => "smollm2-Q8_0.gguf",
            Weights::Q4KM => "smollm2-Q4_K_M.gguf",
            Weights::Bf16 => "smollm2-BF16.gguf",
            Weights::F32 => "smollm2-F32.gguf",
        };
        let folder = self.need(MODELS)?;
        match self.paths[folder].join(file).is_file() {
            true => Ok(format!("{folder}/{file}")),
            false => Err(format!("{folder} has no {file}")),
        }
    }
}

/// The command lines of a row.
pub struct Ready {
    pub ours: Vec<String>,
    /// Name and command line.
    pub peers: Vec<(&'static str, Vec<String>)>,
    /// Peers that are not there, and why.
    pub missing: Vec<(&'static str, String)>,
}

impl Row {
    /// What is measured, for people.
    pub fn unit(&self) -> &'static str {
        match self.work {
            Work::Load(_) => "s",
            Work::Gemm => "GFLOP/s",
            _ => "tokens/s",
        }
    }

    /// Whether a larger figure is the better one.
    pub fn larger_is_better(&self) -> bool {
        !matches!(self.work, Work::Load(_))
    }

    /// The command lines, or why the row cannot run here.
    pub fn ready(&self, s: &Surroundings) -> Result<Ready, String> {
        if let Work::Train { precision: Precision::Bf16, .. } = self.work
            && !super::machine::has_flag("avx512_bf16")
        {
            return Err("this CPU does not multiply bf16".to_owned());
        }
        let ours = self.ours(s)?;
        let (mut peers, mut missing) = (Vec::new(), Vec::new());
        for (name, line) in self.peers(s) {
            match line {
                Ok(line) => peers.push((name, line)),
                Err(why) => missing.push((name, why)),
            }
        }
        if peers.is_empty() {
            let why = missing.iter().map(|(peer, why)| format!("{peer}: {why}"));
            return Err(why.collect::<Vec<_>>().join("; "));
        }
        Ok(Ready { ours, peers, missing })
    }

    fn ours(&self, s: &Surroundings) -> Result<Vec<String>, String> {
        let flags = match &self.work {
            Work::Train { what, batch, length, precision } => {
                let what = match what {
                    What::LoraAll => "--only train",
                    What::LoraQv => "--only train --targets q,v",
                    What::Full => "--only full",
                };
                let precision = precision.name();
                format!(
                    "{} {what} --batch {batch} --context {length} --precision {precision}",
                    s.need(MODEL)?
                )
            }
            Work::Prefill(w) => format!("{} --only prefill --context 512", s.gguf(*w)?),
            Work::Decode(w) => format!("{} --only decode --context 512 --tokens 128", s.gguf(*w)?),
            Work::Load(w) => format!("{} --only load --repeats 1", s.gguf(*w)?),
            Work::Gemm => "--only matrix --repeats 5".to_owned(),
        };
        Ok(words(&format!("{PLANISH} bench --json {flags} --threads {}", s.threads)))
    }

    fn peers(&self, s: &Surroundings) -> Vec<(&'static str, Result<Vec<String>, String>)> {
        let threads = format!("--threads {}", s.threads);
        let torch = |script: &str, needs: &[&'static str], flags: &str| {
            let python = s.need(PYTHON)?;
            needs.iter().try_for_each(|name| s.need(name).map(|_| ()))?;
            Ok(words(&format!("{python} {PEERS}/{script} {flags} {threads}")))
        };
        let llama = |what: &str, w: Weights| {
            let (python, model) = (s.need(LLAMACPP)?, s.gguf(w)?);
            Ok(words(&format!("{python} {PEERS}/llama.py {what} --model {model} {threads}")))
        };
        let infer = |what: &str, w: Weights| {
            let mut peers = vec![("llama.cpp", llama(what, w))];
            // The folder holds f32 weights; other types are llama.cpp's alone.
            if w == Weights::F32 {
                peers.push(("transformers", torch("torch_infer.py", &[HF], &format!("{what} --model {HF}"))));
            }
            peers
        };
        match &self.work {
            Work::Train { what, batch, length, precision } => {
                let (name, what) = match what {
                    What::LoraAll => ("PEFT", "lora --targets all"),
                    What::LoraQv => ("PEFT", "lora --targets qv"),
                    What::Full => ("PyTorch", "full"),
                };
                let dtype = precision.name();
                let flags = format!("{what} --model {HF} --batch {batch} --length {length} --dtype {dtype}");
                vec![(name, torch("torch_train.py", &[HF], &flags))]
            }
            Work::Prefill(w) => infer("prefill", *w),
            Work::Decode(w) => infer("decode", *w),
            Work::Load(w) => infer("load", *w),
            Work::Gemm => vec![("PyTorch", torch("torch_gemm.py", &[], &SHAPES.join(" ")))],
        }
    }

    /// The figures in an object that planish or a peer printed, by name.
    pub fn figures(&self, object: &Value) -> BTreeMap<String, f64> {
        let mut found = BTreeMap::new();
        if let Work::Gemm = self.work {
            let m = &object["matrix"];
            if let (Some(order), Some(rate)) = (m["order"].as_str(), m["gflops"]["median"].as_f64()) {
                found.insert(format!("{} x {} x {} {order}", m["m"], m["k"], m["n"]), rate);
            }
            let peer = object["gflops"].as_object().into_iter().flatten();
            found.extend(peer.filter_map(|(name, rate)| Some((name.clone(), rate.as_f64()?))));
            return found;
        }
        let (ours, peer) = match self.work {
            Work::Train { .. } => (&object["train"]["tokens_per_second"]["median"], "tokens_per_s"),
            Work::Prefill(_) => (&object["prefill"]["tokens_per_second"]["median"], "tokens_per_s"),
            Work::Decode(_) => (&object["decode"]["tokens_per_second"]["median"], "tokens_per_s"),
            // Of a process that has just begun, as the peer's is.
            _ => (&object["first_token"]["first_seconds"], "seconds"),
        };
        let value = ours.as_f64().or(object[peer].as_f64());
        found.extend(value.map(|v| (String::new(), v)));
        found
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(names: &[&'static str]) -> Surroundings {
        let paths = names.iter().map(|name| (*name, PathBuf::from("/x/y"))).collect();
        Surroundings { paths, threads: 2 }
    }

    #[test]
    fn names_are_unique() {
        assert!(ROWS.iter().all(|row| ROWS.iter().filter(|r| r.id == row.id).count() == 1));
    }

    #[test]
    fn what_is_missing_is_named() {
        let ready = |id: &str, names: &[&'static str]| of(id).unwrap().ready(&surroundings(names));
        let why = |id, names: &[&'static str]| ready(id, names).err().unwrap();
        assert_eq!(why("lora-f32-b1", &[]), "PLANISH_BENCH_MODEL is not set");
        assert_eq!(why("lora-f32-b1", &[MODEL, PYTHON]), "PEFT: PLANISH_BENCH_HF is not set");
        assert_eq!(why("decode-q8_0", &[MODELS]), "$PLANISH_BENCH_MODELS has no smollm2-Q8_0.gguf");
        let line = ready("lora-qv-f32-b1", &[MODEL, PYTHON, HF]).unwrap().ours.join(" ");
        let want = "planish bench --json $PLANISH_BENCH_MODEL --only train --targets q,v --batch 1 --context 512 --precision f32 --threads 2";
        assert_eq!(line, want);
    }

    #[test]
    fn words_become_paths() {
        let s = surroundings(&[MODELS, MODEL, PEERS]);
        assert_eq!(s.resolve("$PLANISH_BENCH_MODEL"), "/x/y");
        assert_eq!(s.resolve("$PLANISH_BENCH_MODELS/a.gguf"), "/x/y/a.gguf");
        assert_eq!(s.resolve("bench/peers/llama.py"), "/x/y/llama.py");
        assert_eq!(s.resolve("--only"), "--only");
    }
}
