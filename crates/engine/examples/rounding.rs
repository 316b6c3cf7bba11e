//! What rounding costs: the perplexity of a text with products in f32, in bf16, in the integers of prompts, and with the
//! int8 activations of decoding.
//!
//! ```text
//! cargo run --release -p planish-engine --example rounding -- MODEL.gguf TEXT [TOKENS [CONTEXT [THREADS]]]
//! ```
#![allow(clippy::print_stdout)] // an example prints

use std::path::Path;

use planish_base::{Result, math};
use planish_compute::call::Product;
use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::{Pass, Ragged, Trainable};
use planish_store::fs;
use planish_tape::{Mode, Tape};

/// The largest text that is read.
const TEXT_LIMIT: u64 = 16 << 20;

/// The first is what the others are compared with.
const PRODUCTS: [(&str, Product); 4] =
    [("f32", Product::Packed), ("bf16", Product::Bf16), ("int16", Product::Int16), ("int8", Product::Dot)];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, text, ..] = &args[..] else { panic!("usage: rounding MODEL.gguf TEXT [TOKENS ...]") };
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let [tokens, context, threads] = [(3, 4096), (4, 512), (5, 2)].map(|(i, d)| number(i, d));
    let (isa, trainable) = (Isa::detect(), Trainable::Nothing);
    let options = EngineOptions {
        threads,
        isa,
        context,
        tokens: context,
        trainable,
        recompute: false,
        precision: Precision::F32,
    };
    let mut engine = Engine::new(Model::open(Path::new(model))?, options)?;
    let text = fs::read_bounded(Path::new(text), TEXT_LIMIT)?;
    let ids = engine.model.tokenizer()?.encode(&String::from_utf8_lossy(&text))?;
    let mut loss = [0.0; PRODUCTS.len()];
    let mut scored = 0;
    for ids in ids[..tokens.min(ids.len())].chunks_exact(context) {
        for (sum, product) in loss.iter_mut().zip(PRODUCTS) {
            *sum += losses(&mut engine, ids, product.1)?;
        }
        scored += context - 1;
    }
    let perplexity = loss.map(|sum| math::exp_f64(sum / scored as f64));
    println!("{scored} tokens");
    for ((name, _), value) in PRODUCTS.iter().zip(perplexity) {
        println!("{name}: perplexity {value:.5}, {:+.4} %", 100.0 * (value / perplexity[0] - 1.0));
    }
    Ok(())
}

/// The sum of the losses of every token but the first.
fn losses(engine: &mut Engine, ids: &[u32], product: Product) -> Result<f64> {
    let n = ids.len() as u32;
    let positions: Vec<u32> = (0..n).collect();
    let batch = Ragged {
        ids,
        positions: &positions,
        segments: &[[0, n, 0, 0]],
        rows: &positions[..ids.len() - 1],
        targets: &ids[1..],
    };
    let (views, targets) = engine.inputs.views(&batch);
    let mut tape = Tape::new(Mode::Infer, product);
    let mut pass = Pass::new(&mut tape, views, &engine.model.spec, &engine.params, &[], None);
    let hidden = pass.hidden();
    let scores = pass.scores(hidden, &targets, 0);
    let program = tape.finish();
    engine.reserve(program.arena_bytes())?;
    engine.inputs.fill(&mut engine.backend, &batch, 1.0);
    engine.backend.run(&program);
    let losses = engine.backend.download_f32(&program.view(&scores.loss));
    Ok(losses.iter().map(|l| f64::from(*l)).sum())
}
