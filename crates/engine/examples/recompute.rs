//! Memory, multiplications and time of training passes that keep their activations or compute them again.
//!
//! ```text
//! cargo run --release -p planish-engine --example recompute -- MODEL.gguf [CONTEXT [SEQUENCES [REPEATS [THREADS]]]]
//! ```
//!
//! Without repeats (0) nothing is run or timed. Without a model's path (`-`) the model is a random llama of 2 blocks of
//! width 64.
#![allow(clippy::print_stdout)] // an example prints

#[path = "../tests/common/random.rs"]
mod random;

use std::path::Path;
use std::time::Instant;

use planish_base::{Result, TypeId};
use planish_compute::{Isa, profile};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::{AdapterSet, AdapterSpec, ROLES, Ragged, Trainable};

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "-".into());
    let number = |i, default| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let [context, sequences, repeats, threads] =
        [(2, 512), (3, 1), (4, 3), (5, 2)].map(|(i, d)| number(i, d));
    for (name, trainable) in [("LoRA", Trainable::Nothing), ("everything", Trainable::Everything)] {
        let (isa, tokens) = (Isa::detect(), sequences * context);
        let options = EngineOptions {
            threads,
            isa,
            context,
            tokens,
            trainable: trainable.clone(),
            recompute: false,
            precision: Precision::F32,
        };
        let model = match path.as_str() {
            "-" => random::llama(
                2,
                64,
                if trainable == Trainable::Everything { TypeId::F32 } else { TypeId::Q8_0 },
            ),
            path => Model::open(Path::new(path))?,
        };
        let mut engine = Engine::new(model, options)?;
        let set = adapter(&mut engine, &trainable)?;
        let mut best = [f64::MAX; 2];
        // In turns, so that a busy machine hurts both.
        for turn in 0..2 * repeats.max(1) {
            let i = turn % 2;
            engine.set_recompute(i == 1);
            let (bytes, products, seconds) = measure(&mut engine, &set, sequences, context, repeats > 0)?;
            best[i] = best[i].min(seconds);
            let (saved, mb, giga) = (["kept", "recomputed"][i], bytes as f64 / 1e6, products as f64 / 1e9);
            let time = if repeats > 0 { format!(", best {:.2} s", best[i]) } else { String::new() };
            println!(
                "{name}, {sequences} x {context}, {saved}: {mb:.0} MB, {giga:.0} G multiplications{time}"
            );
        }
    }
    Ok(())
}

fn adapter(engine: &mut Engine, trainable: &Trainable) -> Result<AdapterSet> {
    if *trainable == Trainable::Everything {
        return Ok(AdapterSet::default());
    }
    let spec = AdapterSpec {
        rank: 8,
        alpha: 16.0,
        rslora: false,
        targets: ROLES.to_vec(),
        dropout: 0.05,
        ..AdapterSpec::default()
    };
    AdapterSet::init(&mut engine.backend, &engine.model.spec, &engine.params, &spec, 0)
}

/// Bytes of the arena, multiplications of the matrix products, and seconds of a forward and backward pass.
fn measure(
    engine: &mut Engine,
    set: &AdapterSet,
    sequences: usize,
    context: usize,
    timed: bool,
) -> Result<(u64, u64, f64)> {
    let n = (sequences * context) as u32;
    let length = context as u32;
    let ids: Vec<u32> = (0..n).map(|i| i * 37 % 500).collect();
    let positions: Vec<u32> = (0..n).map(|i| i % length).collect();
    let segments: Vec<[u32; 4]> = (0..n / length).map(|s| [s * length, length, 0, 0]).collect();
    let rows: Vec<u32> = (0..n).filter(|i| i % length != length - 1).collect();
    let targets: Vec<u32> = rows.iter().map(|r| ids[*r as usize + 1]).collect();
    let batch =
        Ragged { ids: &ids, positions: &positions, segments: &segments, rows: &rows, targets: &targets };
    let program = engine.training_program(&batch, &[set]).0;
    let (bytes, products) =
        (program.arena_bytes(), program.calls().iter().map(profile::multiplications).sum());
    let start = Instant::now();
    if timed {
        engine.train_batch(&batch, &[set], 1.0 / rows.len() as f32)?;
    }
    Ok((bytes, products, start.elapsed().as_secs_f64()))
}
