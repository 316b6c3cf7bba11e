//! Training passes that compute activations again: the same losses and gradients, in a smaller arena.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

#[path = "common/random.rs"]
mod random;

use planish_base::TypeId;
use planish_compute::{Backend, Isa, View};
use planish_engine::{Engine, EngineOptions, Precision};
use planish_model::{AdapterSet, AdapterSpec, ROLES, Ragged, Trainable};
use planish_tape::ops::Example;

const TOKENS: u32 = 256;
const LAYERS: usize = 6;

fn engine(trainable: &Trainable, threads: usize) -> Engine {
    let (isa, tokens) = (Isa::detect(), TOKENS as usize);
    let options = EngineOptions {
        threads,
        isa,
        context: tokens,
        tokens,
        trainable: trainable.clone(),
        recompute: false,
        precision: Precision::F32,
    };
    Engine::new(random::llama(LAYERS, 64, TypeId::F32), options).unwrap()
}

/// An adapter on every map, with dropout. B is not zero, so that no gradient is.
fn adapter(engine: &mut Engine) -> AdapterSet {
    let spec = AdapterSpec {
        rank: 4,
        alpha: 8.0,
        rslora: false,
        targets: ROLES.to_vec(),
        dropout: 0.3,
        ..AdapterSpec::default()
    };
    let set = AdapterSet::init(&mut engine.backend, &engine.model.spec, &engine.params, &spec, 5).unwrap();
    for (i, (_, pair)) in set.pairs().enumerate() {
        let values: Vec<f32> =
            Example::normals(i as u32, pair.b.view.elements()).iter().map(|x| 0.1 * x).collect();
        engine.backend.upload_f32(&pair.b.view, &values);
    }
    engine.backend.upload_u32(&set.dropout_key().unwrap(), &[1, 2, 3, 4]);
    set
}

/// Bits of the losses and of all gradients, and the bytes of the arena.
fn train(trainable: &Trainable, threads: usize, recompute: bool) -> (Vec<Vec<u32>>, u64) {
    let mut engine = engine(trainable, threads);
    engine.set_recompute(recompute);
    let set = if *trainable == Trainable::Nothing { adapter(&mut engine) } else { AdapterSet::default() };
    let ids: Vec<u32> = (0..TOKENS).map(|i| i * 37 % 512).collect();
    let positions: Vec<u32> = (0..100).chain(0..TOKENS - 100).collect();
    let rows: Vec<u32> = (0..TOKENS).filter(|r| r % 7 != 2).collect();
    let targets: Vec<u32> = rows.iter().map(|r| r * 11 % 512).collect();
    let segments = [[0, 100, 0, 0], [100, TOKENS - 100, 0, 0]];
    let batch =
        Ragged { ids: &ids, positions: &positions, segments: &segments, rows: &rows, targets: &targets };
    let losses = engine.train_batch(&batch, &[&set], 1.0 / rows.len() as f32).unwrap();
    let base = engine.params.trainable().map(|n| n.param);
    let grads: Vec<View> =
        base.chain(set.pairs().flat_map(|(_, p)| [p.a, p.b])).filter_map(|p| p.grad).collect();
    assert!(grads.len() > 7 * LAYERS);
    let values = std::iter::once(losses).chain(grads.iter().map(|g| engine.backend.download_f32(g)));
    let bits = values.map(|v| v.iter().map(|x| x.to_bits()).collect()).collect();
    (bits, engine.training_program(&batch, &[&set]).0.arena_bytes())
}

fn check(trainable: &Trainable) {
    let (want, kept) = train(trainable, 1, false);
    assert!(want.iter().all(|v| v.iter().any(|x| f32::from_bits(*x) != 0.0)), "a gradient is zero");
    for threads in [1, 3] {
        let (got, recomputed) = train(trainable, threads, true);
        assert!(got == want, "{threads} threads");
        // One layer's activations and gradients and six residual streams, instead of six layers' activations.
        assert!(2 * recomputed < kept, "{recomputed} of {kept} bytes");
    }
}

#[test]
fn adapters_with_dropout() {
    check(&Trainable::Nothing);
}

#[test]
fn all_weights() {
    check(&Trainable::Everything);
}
