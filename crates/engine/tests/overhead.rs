//! Decoding allocates nothing: the calls of a token are recorded once.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

#[path = "common/random.rs"]
mod random;

use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Sampler, SamplerOptions, Session};
use planish_model::Trainable;

#[test]
fn a_token_needs_no_heap_allocation() {
    let options = EngineOptions {
        threads: 1,
        isa: Isa::detect(),
        context: 256,
        tokens: 64,
        trainable: Trainable::Nothing,
        recompute: false,
    };
    let mut engine = Engine::new(random::llama(30, 64), options).unwrap();
    let mut session = Session::new(&mut engine, &[]).unwrap();
    let mut sampler = Sampler::new(SamplerOptions::default()).unwrap();
    session.prefill(&[1, 2, 3]).unwrap();
    // The first token grows the scratch memory of the worker.
    session.decode(4).unwrap();
    let counts = allocation_counter::measure(|| {
        for _ in 0..100 {
            let id = sampler.next(session.logits());
            session.decode(id).unwrap();
        }
    });
    // The sampler's list of distinct tokens may grow a few times; a token's own work may not allocate.
    assert!(counts.count_total <= 8, "{} allocations in 100 tokens", counts.count_total);
}
