//! Where the time of a training step goes.
//!
//! ```text
//! cargo run --release -p planish-engine --example profile -- MODEL.gguf [CONTEXT [SEQUENCES [THREADS [RANK]]]]
//! ```
#![allow(clippy::print_stdout)] // an example prints

use std::path::Path;

use planish_base::Result;
use planish_compute::{Isa, profile};
use planish_engine::{Engine, EngineOptions, Model};
use planish_model::{AdapterSet, AdapterSpec, ROLES, Ragged, Trainable};

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "model.gguf".into());
    let number = |i, default| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let [context, sequences, threads, rank] = [(2, 512), (3, 1), (4, 2), (5, 16)].map(|(i, d)| number(i, d));
    let (isa, tokens) = (Isa::detect(), sequences * context);
    let options =
        EngineOptions { threads, isa, context, tokens, trainable: Trainable::Nothing, recompute: false };
    let mut engine = Engine::new(Model::open(Path::new(&path))?, options)?;
    let spec = AdapterSpec { rank, alpha: 32.0, rslora: false, targets: ROLES.to_vec(), dropout: 0.0 };
    let set = AdapterSet::init(&mut engine.backend, &engine.model.spec, &spec, 0)?;
    let (n, length) = (tokens as u32, context as u32);
    let ids: Vec<u32> = (0..n).map(|i| i * 37 % 1000).collect();
    let positions: Vec<u32> = (0..n).map(|i| i % length).collect();
    let segments: Vec<[u32; 4]> = (0..n / length).map(|s| [s * length, length, 0, 0]).collect();
    let rows: Vec<u32> = (0..n).filter(|i| i % length != length - 1).collect();
    let targets: Vec<u32> = rows.iter().map(|r| ids[*r as usize + 1]).collect();
    let batch =
        Ragged { ids: &ids, positions: &positions, segments: &segments, rows: &rows, targets: &targets };
    let program = engine.training_program(&batch, &[&set]).0;
    let normaliser = 1.0 / rows.len() as f32;
    engine.train_batch(&batch, &[&set], normaliser)?;
    let times = profile::profile(&mut engine.backend, &program);
    let total: f64 = times.iter().map(|t| t.time.as_secs_f64()).sum();
    println!("{total:.3} s, {:.1} tokens/s", tokens as f64 / total);
    for t in times.iter().take(40) {
        let s = t.time.as_secs_f64();
        let rate = t.multiplications as f64 * 2e-9 / s;
        println!(
            "{:5.1} % {:9.1} ms {:5} {:?} {} {rate:.1} GFLOP/s",
            100.0 * s / total,
            1e3 * s,
            t.calls,
            t.stage,
            t.op
        );
    }
    let products: f64 = times.iter().filter(|t| t.multiplications > 0).map(|t| t.time.as_secs_f64()).sum();
    println!("matrix products {:.1} %", 100.0 * products / total);
    Ok(())
}
