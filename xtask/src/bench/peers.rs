//! The peers of a row, as command lines.

use super::rows::{Precision, SHAPES, Train, Weights, What, Work, words};
use super::surroundings::{BURN, CANDLE, HF, LLAMA_BIN, LLAMACPP, PEERS, PYTHON, Surroundings};

/// A name, and the command line or why there is none.
pub type Peer = (&'static str, Result<Vec<String>, String>);

/// All that do the same work.
pub fn of(work: &Work, s: &Surroundings) -> Vec<Peer> {
    match work {
        Work::Train(train) => training(train, s),
        Work::Prefill(w) => {
            let mut peers = llama("prefill", *w, s);
            peers.push(("transformers, f32", transformers("prefill", Precision::F32, s)));
            peers.push(("transformers, bf16", transformers("prefill", Precision::Bf16, s)));
            peers
        }
        Work::Decode(w) => {
            let mut peers = llama("decode", *w, s);
            // The folder holds f32 weights, and decoding takes as long as reading them.
            if *w == Weights::F32 {
                peers.push(("transformers, f32", transformers("decode", Precision::F32, s)));
            }
            peers
        }
        Work::Load(w) => vec![("llama.cpp", xllamacpp("load", *w, s))],
        Work::Gemm(precision) => {
            let flags = format!("--dtype {} {}", precision.name(), SHAPES.join(" "));
            vec![("PyTorch", torch("torch_gemm.py", &[], &flags, s))]
        }
    }
}

fn training(train: &Train, s: &Surroundings) -> Vec<Peer> {
    let Train { what, precision, batch, length } = train;
    let ([plain, compiled], model, needs): (_, _, &[&'static str]) = match what {
        What::LoraAll => (["PEFT", "PEFT, compiled"], format!("lora --targets all --model {HF}"), &[HF]),
        What::LoraQv => (["PEFT", "PEFT, compiled"], format!("lora --targets qv --model {HF}"), &[HF]),
        What::Full => (["PyTorch", "PyTorch, compiled"], format!("full --model {HF}"), &[HF]),
        What::Scratch => (["PyTorch", "PyTorch, compiled"], "scratch".to_owned(), &[]),
    };
    let flags = format!("{model} --batch {batch} --length {length} --dtype {}", precision.name());
    let mut peers = vec![(plain, torch("torch_train.py", needs, &flags, s))];
    if s.compiled {
        peers.push((compiled, torch("torch_train.py", needs, &format!("{flags} --compile"), s)));
    }
    // The others train in f32 alone, and llama.cpp one sequence at a time.
    match (what, precision) {
        (What::Scratch, Precision::F32) => {
            peers.push(("candle", program(CANDLE, train, s)));
            peers.push(("burn", program(BURN, train, s)));
        }
        (What::Full, Precision::F32) if *batch == 1 => {
            peers.push(("llama.cpp, native", finetune(*length, s)));
        }
        _ => {}
    }
    peers
}

fn torch(script: &str, needs: &[&'static str], flags: &str, s: &Surroundings) -> Result<Vec<String>, String> {
    let python = s.need(PYTHON)?;
    needs.iter().try_for_each(|name| s.need(name).map(|_| ()))?;
    Ok(words(&format!("{python} {PEERS}/{script} {flags} --threads {}", s.threads)))
}

fn transformers(what: &str, precision: Precision, s: &Surroundings) -> Result<Vec<String>, String> {
    let flags = format!("{what} --model {HF} --dtype {}", precision.name());
    torch("torch_infer.py", &[HF], &flags, s)
}

/// The packaged build of llama.cpp and one for this machine alone.
fn llama(what: &str, w: Weights, s: &Surroundings) -> Vec<Peer> {
    let native = || {
        let (program, model) = (s.file(LLAMA_BIN, "llama-bench")?, s.gguf(w)?);
        let script = format!("{PEERS}/llama_bench.py {what} --program {program}");
        Ok(words(&format!("python3 {script} --model {model} --threads {}", s.threads)))
    };
    vec![("llama.cpp", xllamacpp(what, w, s)), ("llama.cpp, native", native())]
}

fn xllamacpp(what: &str, w: Weights, s: &Surroundings) -> Result<Vec<String>, String> {
    let (python, model) = (s.need(LLAMACPP)?, s.gguf(w)?);
    Ok(words(&format!("{python} {PEERS}/llama.py {what} --model {model} --threads {}", s.threads)))
}

fn finetune(length: usize, s: &Surroundings) -> Result<Vec<String>, String> {
    let (program, model) = (s.file(LLAMA_BIN, "llama-finetune")?, s.gguf(Weights::F32)?);
    let script = format!("{PEERS}/llama_finetune.py --program {program} --model {model}");
    Ok(words(&format!("python3 {script} --length {length} --threads {}", s.threads)))
}

/// A program that trains the small llama; bench/README.md says what it takes and prints.
fn program(name: &'static str, train: &Train, s: &Surroundings) -> Result<Vec<String>, String> {
    let sizes = format!("--batch {} --seq {} --steps 3 --warmup 1", train.batch, train.length);
    Ok(words(&format!("{} {sizes} --threads {}", s.need(name)?, s.threads)))
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::super::surroundings::{CANDLE, HF, PYTHON};
    use super::*;

    fn peers(id: &str, s: &Surroundings) -> Vec<(&'static str, Result<String, String>)> {
        let all = of(&rows::of(id).unwrap().work, s);
        all.into_iter().map(|(name, line)| (name, line.map(|l| l.join(" ")))).collect()
    }

    #[test]
    fn compiling_is_asked_for() {
        let mut s = Surroundings::of(&[PYTHON, HF]);
        let plain = peers("lora-bf16-b4", &s);
        assert_eq!(plain.len(), 1);
        s.compiled = true;
        let both = peers("lora-bf16-b4", &s);
        assert_eq!(both[0], plain[0]);
        assert_eq!(both[1].0, "PEFT, compiled");
        let flags =
            "lora --targets all --model $PLANISH_BENCH_HF --batch 4 --length 256 --dtype bf16 --compile";
        let line = format!("$PLANISH_BENCH_PYTHON bench/peers/torch_train.py {flags} --threads 2");
        assert_eq!(both[1].1, Ok(line));
    }

    #[test]
    fn the_small_llama_has_more_peers_in_f32() {
        let s = Surroundings::of(&[PYTHON, CANDLE]);
        let all = peers("scratch-f32", &s);
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["PyTorch", "candle", "burn"]);
        let line = "$PLANISH_BENCH_CANDLE --batch 8 --seq 256 --steps 3 --warmup 1 --threads 2";
        assert_eq!(all[1].1, Ok(line.to_owned()));
        assert_eq!(all[2].1, Err("PLANISH_BENCH_BURN is not set".to_owned()));
        assert_eq!(peers("scratch-bf16", &s).len(), 1);
    }

    #[test]
    fn llama_cpp_trains_one_sequence_in_f32() {
        let s = Surroundings::of(&[PYTHON, HF]);
        let count = |id: &str| peers(id, &s).iter().filter(|(name, _)| *name == "llama.cpp, native").count();
        assert_eq!(["full-f32-b1", "full-f32-b4", "full-bf16-b1", "lora-f32-b1"].map(count), [1, 0, 0, 0]);
    }

    #[test]
    fn every_prompt_is_read_by_transformers_too() {
        let s = Surroundings::of(&[PYTHON, HF]);
        for id in ["prefill-q4_1", "prefill-q8_0", "prefill-bf16", "prefill-f32"] {
            let lines = peers(id, &s).into_iter().filter_map(|(_, line)| line.ok());
            let dtypes: Vec<String> =
                lines.filter_map(|l| Some(l.split_once("--dtype ")?.1.into())).collect();
            assert_eq!(dtypes, ["f32 --threads 2", "bf16 --threads 2"], "{id}");
        }
    }
}
