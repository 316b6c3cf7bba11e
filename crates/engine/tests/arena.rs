//! The memory of a training pass grows with the tokens and with nothing else: no mask of [T, T], no row of the
//! vocabulary for each token.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test fails and reports

#[path = "common/random.rs"]
mod random;

use planish_base::TypeId;
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Precision, score};
use planish_model::Trainable;
use planish_text::{Example, batch};

const BATCHES: [usize; 4] = [1, 2, 4, 8];
const CONTEXTS: [usize; 3] = [256, 512, 1024];

/// Two blocks of width 64; every weight is trained.
fn engine(vocab: usize, recompute: bool) -> Engine {
    let options = EngineOptions {
        threads: 2,
        isa: Isa::detect(),
        context: 1024,
        tokens: 8 * 1024,
        trainable: Trainable::Everything,
        recompute,
        precision: Precision::F32,
    };
    Engine::new(random::llama_of(2, 64, vocab, TypeId::F32), options).unwrap()
}

/// Bytes of arena of a training pass over `sequences` sequences of `length` tokens, all of them trained.
fn arena(engine: &Engine, sequences: usize, length: usize) -> u64 {
    let example = || Example {
        ids: (0..length as u32).map(|i| i % 512).collect(),
        trained: (0..length).map(|i| i > 0).collect(),
        place: String::new(),
    };
    let examples: Vec<Example> = (0..sequences).map(|_| example()).collect();
    let b = batch(&examples.iter().collect::<Vec<_>>());
    let segments = score::segments(&b);
    engine.training_program(&score::ragged(&b, &segments), &[]).0.arena_bytes()
}

/// Bytes of a chunk of 256 rows of logits, and of no more.
fn logits(vocab: u64) -> u64 {
    256 * vocab * 4
}

#[test]
fn the_arena_is_linear_in_the_tokens() {
    for recompute in [false, true] {
        let engine = engine(512, recompute);
        let kind = if recompute { "recomputed" } else { "kept" };
        for b in BATCHES {
            let row = CONTEXTS.map(|t| arena(&engine, b, t));
            let each = |i: usize| format!("{} ({:.0})", row[i], row[i] as f64 / (b * CONTEXTS[i]) as f64);
            eprintln!(
                "{kind}, B {b}: bytes (a token) at T 256, 512, 1024: {} {} {}",
                each(0),
                each(1),
                each(2)
            );
            let shorter = CONTEXTS.map(|t| arena(&engine, b, t / 2));
            let fewer = CONTEXTS.map(|t| arena(&engine, b.div_ceil(2), t));
            // What may come once and not again is a chunk of logits.
            let fits =
                |i: usize| row[i] <= 2 * shorter[i] + logits(512) && row[i] <= 2 * fewer[i] + logits(512);
            assert!(
                (0..3).all(fits),
                "{kind}, B {b}: {row:?}, half as long {shorter:?}, half of them {fewer:?}"
            );
        }
        // The same tokens take the same memory in few long sequences and in many short ones, within a bit for each
        // pair of a long one's positions.
        let (long, short) = (arena(&engine, 2, 1024), arena(&engine, 8, 256));
        eprintln!("{kind}, 2048 tokens: {long} as 2 x 1024, {short} as 8 x 256");
        assert!(long.abs_diff(short) < 1024 * 1024 / 8, "{long} {short}");
    }
}

/// Logits are computed in chunks of rows: what a larger vocabulary costs does not depend on the tokens.
#[test]
fn the_vocabulary_is_not_multiplied_with_the_tokens() {
    let (small, large) = (engine(512, false), engine(4096, false));
    let cost = |b, t| arena(&large, b, t) - arena(&small, b, t);
    let (few, many) = (cost(1, 256), cost(8, 1024));
    eprintln!("a vocabulary of 4096 instead of 512 costs {few} bytes at 256 tokens, {many} at 8192");
    assert!(few <= logits(4096 - 512) && many <= logits(4096 - 512));
}
