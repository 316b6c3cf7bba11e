//! What is compared: a row is one piece of work for planish and its peers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::peers;
use super::surroundings::{MODEL, MODELS, PLANISH, Surroundings};

/// One piece of work.
pub struct Row {
    /// Its name on the command line.
    pub id: &'static str,
    pub work: Work,
}

pub enum Work {
    Train(Train),
    /// Reading 512 tokens.
    Prefill(Weights),
    /// Writing 128 tokens after 512.
    Decode(Weights),
    /// From before the model is opened to its first token.
    Load(Weights),
    /// Products of matrices.
    Gemm(Precision),
}

/// A training step.
pub struct Train {
    pub what: What,
    pub precision: Precision,
    pub batch: usize,
    pub length: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Rank 16 on all seven maps of a block.
    LoraAll,
    /// Rank 16 on query and value.
    LoraQv,
    /// Every weight.
    Full,
    /// Every weight of a small new llama.
    Scratch,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    Bf16,
}

impl Precision {
    pub fn name(self) -> &'static str {
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
    Row { id, work: Work::Train(Train { what, precision, batch, length }) }
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
    train("scratch-f32", What::Scratch, Precision::F32, 8, 256),
    train("scratch-bf16", What::Scratch, Precision::Bf16, 8, 256),
    row("decode-q4_1", Work::Decode(Weights::Q4_1)),
    row("decode-q8_0", Work::Decode(Weights::Q8_0)),
    row("decode-q4_k_m", Work::Decode(Weights::Q4KM)),
    row("decode-bf16", Work::Decode(Weights::Bf16)),
    row("decode-f32", Work::Decode(Weights::F32)),
    row("prefill-q4_1", Work::Prefill(Weights::Q4_1)),
    row("prefill-q8_0", Work::Prefill(Weights::Q8_0)),
    row("prefill-bf16", Work::Prefill(Weights::Bf16)),
    row("prefill-f32", Work::Prefill(Weights::F32)),
    row("load-q4_1", Work::Load(Weights::Q4_1)),
    row("gemm", Work::Gemm(Precision::F32)),
    row("gemm-bf16", Work::Gemm(Precision::Bf16)),
];

/// The shapes of `planish bench --only matrix`.
pub const SHAPES: [&str; 5] =
    ["512,576,576", "512,576,1536", "512,1536,576", "512,576,49152", "512,2048,2048"];

/// The row of this name.
pub fn of(id: &str) -> Result<&'static Row> {
    ROWS.iter().find(|row| row.id == id).with_context(|| {
        let known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        format!("no row '{id}'; there are {}", known.join(", "))
    })
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
            Work::Gemm(_) => "GFLOP/s",
            _ => "tokens/s",
        }
    }

    /// Whether a larger figure is the better one.
    pub fn larger_is_better(&self) -> bool {
        !matches!(self.work, Work::Load(_))
    }

    /// The command lines, or why the row cannot run here.
    pub fn ready(&self, s: &Surroundings) -> Result<Ready, String> {
        let ours = self.ours(s)?;
        let (mut peers, mut missing) = (Vec::new(), Vec::new());
        for (name, line) in peers::of(&self.work, s) {
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
            Work::Train(Train { what, batch, length, precision }) => {
                let work = match what {
                    What::LoraAll => format!("{} --only train", s.need(MODEL)?),
                    What::LoraQv => format!("{} --only train --targets q,v", s.need(MODEL)?),
                    What::Full => format!("{} --only full", s.need(MODEL)?),
                    What::Scratch => format!("{} --only full", s.file(MODELS, "scratch-F32.gguf")?),
                };
                format!("{work} --batch {batch} --context {length} --precision {}", precision.name())
            }
            Work::Prefill(w) => format!("{} --only prefill --context 512", s.gguf(*w)?),
            Work::Decode(w) => format!("{} --only decode --context 512 --tokens 128", s.gguf(*w)?),
            Work::Load(w) => format!("{} --only load --repeats 1", s.gguf(*w)?),
            Work::Gemm(precision) => format!("--only matrix --repeats 5 --precision {}", precision.name()),
        };
        Ok(words(&format!("{PLANISH} bench --json {flags} --threads {}", s.threads)))
    }

    /// The figures in an object that planish or a peer printed, by name.
    pub fn figures(&self, object: &Value) -> BTreeMap<String, f64> {
        let mut found = BTreeMap::new();
        if let Work::Gemm(_) = self.work {
            let m = &object["matrix"];
            if let (Some(order), Some(rate)) = (m["order"].as_str(), m["gflops"]["median"].as_f64()) {
                found.insert(format!("{} x {} x {} {order}", m["m"], m["k"], m["n"]), rate);
            }
            let peer = object["gflops"].as_object().into_iter().flatten();
            found.extend(peer.filter_map(|(name, rate)| Some((name.clone(), rate.as_f64()?))));
            return found;
        }
        let (ours, peer) = match self.work {
            Work::Train(_) => (&object["train"]["tokens_per_second"]["median"], "tokens_per_s"),
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

/// The words of a command line.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::surroundings::{HF, PYTHON};
    use super::*;

    #[test]
    fn names_are_unique() {
        assert!(ROWS.iter().all(|row| ROWS.iter().filter(|r| r.id == row.id).count() == 1));
    }

    #[test]
    fn bf16_runs_on_every_machine() {
        let s = Surroundings::of(&[MODEL, PYTHON, HF]);
        let of_bf16 = |row: &&Row| match row.work {
            Work::Train(Train { precision, what, .. }) => {
                precision == Precision::Bf16 && what != What::Scratch
            }
            Work::Gemm(precision) => precision == Precision::Bf16,
            _ => false,
        };
        let lines: Vec<_> = ROWS.iter().filter(of_bf16).map(|row| row.ready(&s).ok().unwrap()).collect();
        assert_eq!(lines.len(), 6);
        for ready in lines {
            assert!(ready.ours.join(" ").contains("--precision bf16"));
            assert!(ready.peers[0].1.join(" ").contains("--dtype bf16"));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let ready = |id: &str, names: &[&'static str]| of(id).unwrap().ready(&Surroundings::of(names));
        let why = |id, names: &[&'static str]| ready(id, names).err().unwrap();
        assert_eq!(why("lora-f32-b1", &[]), "PLANISH_BENCH_MODEL is not set");
        assert_eq!(why("lora-f32-b1", &[MODEL, PYTHON]), "PEFT: PLANISH_BENCH_HF is not set");
        assert_eq!(why("decode-q8_0", &[MODELS]), "$PLANISH_BENCH_MODELS has no smollm2-Q8_0.gguf");
        let line = ready("lora-qv-f32-b1", &[MODEL, PYTHON, HF]).unwrap().ours.join(" ");
        let want = "planish bench --json $PLANISH_BENCH_MODEL --only train --targets q,v --batch 1 --context 512 --precision f32 --threads 2";
        assert_eq!(line, want);
    }
}
