//! Speed of generation: a prompt is read, then tokens are decoded one by one.
//!
//! ```text
//! cargo run --release -p planish-engine --example decode -- MODEL.gguf [PROMPT_TOKENS [TOKENS [THREADS [ROUNDS]]]]
//! ```
//!
//! The tokens are a fixed sequence, so every run does the same work; with one thread it executes the same
//! instructions. Without a model's path (`-`) the model is a random llama of 2 blocks of width 64.
#![allow(clippy::print_stdout)] // an example prints

#[path = "../tests/common/random.rs"]
mod random;

use std::path::Path;
use std::time::Instant;

use planish_base::{Result, TypeId};
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Model, Precision, Session};
use planish_model::Trainable;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "-".into());
    let number = |i, default| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let [prompt, tokens, threads, rounds] = [(2, 512), (3, 128), (4, 2), (5, 3)].map(|(i, d)| number(i, d));
    let model = match path.as_str() {
        "-" => random::llama(2, 64, TypeId::Q8_0),
        path => Model::open(Path::new(path))?,
    };
    let (vocab, context) = (model.spec.vocab as u32, prompt + tokens);
    let options = EngineOptions {
        threads,
        isa: Isa::detect(),
        context,
        tokens: 512,
        trainable: Trainable::Nothing,
        recompute: false,
        precision: Precision::F32,
    };
    let mut engine = Engine::new(model, options)?;
    let ids: Vec<u32> = (0..context as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    for _ in 0..rounds {
        let mut session = Session::new(&mut engine, &[])?;
        let start = Instant::now();
        session.prefill(&ids[..prompt])?;
        let prefill = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for id in &ids[prompt..] {
            session.decode(*id)?;
        }
        let decode = start.elapsed().as_secs_f64();
        println!(
            "planish prefill {prompt} tokens {:.1} tokens/s, decode {tokens} tokens {:.1} tokens/s",
            prompt as f64 / prefill,
            tokens as f64 / decode
        );
    }
    Ok(())
}
