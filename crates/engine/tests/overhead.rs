//! Decoding allocates nothing: the calls of a token are recorded once.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

#[path = "common/random.rs"]
mod random;

use planish_base::TypeId;
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Precision, Sampler, SamplerOptions, Session};
use planish_model::Trainable;

#[test]
fn a_token_needs_no_heap_allocation() {
    for dtype in [TypeId::F32, TypeId::Q8_0] {
        let count = allocations(dtype, 100);
        // The sampler's list of distinct tokens may grow a few times; a token's own work may not allocate.
        assert!(count <= 8, "{}: {count} allocations in 100 tokens", dtype.name());
    }
}

/// Heap allocations while `tokens` tokens are decoded with weights of a type.
fn allocations(dtype: TypeId, tokens: usize) -> u64 {
    let options = EngineOptions {
        threads: 1,
        isa: Isa::detect(),
        context: 256,
        tokens: 64,
        trainable: Trainable::Nothing,
        recompute: false,
        precision: Precision::F32,
    };
    let mut engine = Engine::new(random::llama(30, 64, dtype), options).unwrap();
    let mut session = Session::new(&mut engine, &[]).unwrap();
    let mut sampler = Sampler::new(SamplerOptions::default()).unwrap();
    session.prefill(&[1, 2, 3]).unwrap();
    // The first token grows the scratch memory of the worker.
    session.decode(4).unwrap();
    let counts = allocation_counter::measure(|| {
        for _ in 0..tokens {
            let id = sampler.next(session.logits());
            session.decode(id).unwrap();
        }
    });
    counts.count_total
}
