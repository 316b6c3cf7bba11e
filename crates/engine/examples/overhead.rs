//! Time of a decode step where arithmetic is next to nothing: a llama of 30 blocks of width 64.
//!
//! ```text
//! cargo run --release -p planish-engine --example overhead -- [THREADS]
//! ```
#![allow(clippy::print_stdout)] // an example prints

#[path = "../tests/common/random.rs"]
mod random;

use std::time::Instant;

use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Session};
use planish_model::Trainable;

fn main() -> planish_base::Result<()> {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let trainable = Trainable::Nothing;
    let (isa, recompute) = (Isa::detect(), false);
    let options = EngineOptions { threads, isa, context: 1024, tokens: 64, trainable, recompute };
    let mut engine = Engine::new(random::llama(30, 64), options)?;
    let mut session = Session::new(&mut engine, &[])?;
    session.prefill(&[1, 2, 3])?;
    let mut micros = Vec::new();
    for i in 0..100 {
        let start = Instant::now();
        session.decode(i % 512)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    micros.sort_by(f64::total_cmp);
    println!(
        "decode, 30 blocks of width 64, {threads} threads: median {:.0} us, best {:.0} us a token",
        micros[50], micros[0]
    );
    Ok(())
}
