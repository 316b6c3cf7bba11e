//! Memory and time of training passes that keep their activations or compute them again.
//!
//! ```text
//! cargo run --release -p planish-engine --example recompute -- MODEL.gguf [CONTEXT] [THREADS]
//! ```
#![allow(clippy::print_stdout)] // an example prints

use std::path::Path;
use std::time::Instant;

use planish_base::Result;
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Model};
use planish_model::{AdapterSet, AdapterSpec, ROLES, Ragged, Trainable};

fn main() -> Result<()> {
    let arg = |i| std::env::args().nth(i);
    let path = arg(1).unwrap_or_else(|| "model.gguf".into());
    let context = arg(2).and_then(|a| a.parse().ok()).unwrap_or(512);
    let threads = arg(3).and_then(|a| a.parse().ok()).unwrap_or(2);
    println!(
        "trained, sequences of {context}, activations: arena MB, seconds of a forward and backward pass"
    );
    for (name, trainable) in [("LoRA", Trainable::Nothing), ("everything", Trainable::Everything)] {
        let (isa, tokens) = (Isa::detect(), 4 * context);
        let options = EngineOptions { threads, isa, context, tokens, trainable, recompute: false };
        let mut engine = Engine::new(Model::open(Path::new(&path))?, options)?;
        let set = adapter(&mut engine, trainable)?;
        for sequences in [1, 4] {
            for recompute in [false, true] {
                engine.set_recompute(recompute);
                let (bytes, seconds) = measure(&mut engine, &set, sequences, context)?;
                let saved = if recompute { "recomputed" } else { "kept" };
                println!("{name}, {sequences}, {saved}: {:.0} MB, {seconds:.2} s", bytes as f64 / 1e6);
            }
        }
    }
    Ok(())
}

fn adapter(engine: &mut Engine, trainable: Trainable) -> Result<AdapterSet> {
    if trainable == Trainable::Everything {
        return Ok(AdapterSet::default());
    }
    let spec = AdapterSpec { rank: 8, alpha: 16.0, rslora: false, targets: ROLES.to_vec(), dropout: 0.05 };
    AdapterSet::init(&mut engine.backend, &engine.model.spec, &spec, 0)
}

/// Bytes of the arena, and the best time of three.
fn measure(engine: &mut Engine, set: &AdapterSet, sequences: usize, context: usize) -> Result<(u64, f64)> {
    let n = (sequences * context) as u32;
    let length = context as u32;
    let ids: Vec<u32> = (0..n).map(|i| i * 37 % 1000).collect();
    let positions: Vec<u32> = (0..n).map(|i| i % length).collect();
    let segments: Vec<[u32; 4]> = (0..n / length).map(|s| [s * length, length, 0, 0]).collect();
    let rows: Vec<u32> = (0..n).filter(|i| i % length != length - 1).collect();
    let targets: Vec<u32> = rows.iter().map(|r| ids[*r as usize + 1]).collect();
    let batch =
        Ragged { ids: &ids, positions: &positions, segments: &segments, rows: &rows, targets: &targets };
    let bytes = engine.training_program(&batch, &[set]).0.arena_bytes();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        engine.train_batch(&batch, &[set], 1.0 / rows.len() as f32)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((bytes, best))
}
