//! Time of a decode step where arithmetic is next to nothing: a llama of 30 blocks of width 64, with weights in F32
//! and in Q8_0, in alternation.
//!
//! ```text
//! cargo run --release -p planish-engine --example overhead -- [THREADS]
//! ```
#![allow(clippy::print_stdout)] // an example prints

#[path = "../tests/common/random.rs"]
mod random;

use std::time::Instant;

use planish_base::{Result, TypeId};
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Precision, Session};
use planish_model::Trainable;

const ROUNDS: usize = 10;
const TOKENS: u32 = 100;

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let trainable = Trainable::Nothing;
    let (isa, recompute) = (Isa::detect(), false);
    let options = EngineOptions {
        threads,
        isa,
        context: 1024,
        tokens: 64,
        trainable,
        recompute,
        precision: Precision::F32,
    };
    let mut runs = Vec::new();
    for dtype in [TypeId::F32, TypeId::Q8_0] {
        runs.push((dtype, Engine::new(random::llama(30, 64, dtype), options.clone())?, Vec::new()));
    }
    for _ in 0..ROUNDS {
        for (_, engine, micros) in &mut runs {
            round(engine, micros)?;
        }
    }
    for (dtype, _, mut micros) in runs {
        micros.sort_by(f64::total_cmp);
        let (median, best, name) = (micros[micros.len() / 2], micros[0], dtype.name());
        println!(
            "decode, 30 blocks of width 64, {name}, {threads} threads: median {median:.0} us, best {best:.0} us a token"
        );
    }
    Ok(())
}

/// Appends the time of each token of a sequence but the first, which grows the scratch memory.
fn round(engine: &mut Engine, micros: &mut Vec<f64>) -> Result<()> {
    let mut session = Session::new(engine, &[])?;
    session.prefill(&[1, 2, 3])?;
    session.decode(4)?;
    for i in 0..TOKENS {
        let start = Instant::now();
        session.decode(i % 512)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}
