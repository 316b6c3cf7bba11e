//! The real SmolLM2-135M against PyTorch on its dequantised weights (../shared/golden/smollm2), where both the model
//! (PLANISH_MODELS) and the golden values (PLANISH_SHARED) are at hand.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

use std::path::{Path, PathBuf};

use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision, Session};
use planish_model::{Ragged, Trainable};
use planish_testkit::files::needed;
use serde_json::Value;

/// The model file and the golden folder, where both are at hand.
fn files() -> Option<(PathBuf, PathBuf)> {
    let golden = needed("PLANISH_SHARED", "golden/smollm2")?;
    let model = needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf")?;
    Some((model, golden))
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn load(model: &Path, trainable: Trainable) -> Engine {
    let (isa, recompute) = (Isa::detect(), false);
    let options = EngineOptions {
        threads: 2,
        isa,
        context: 64,
        tokens: 64,
        trainable,
        recompute,
        precision: Precision::F32,
    };
    Engine::new(Model::open(model).unwrap(), options).unwrap()
}

#[test]
fn logits_and_losses() {
    let Some((model, golden)) = files() else { return };
    let (tokens, forward) = (json(golden.join("tokens.json")), json(golden.join("forward.json")));
    let ids = ids(&tokens["forward_ids"]);
    let mut engine = load(&model, Trainable::Nothing);
    // The logits after the last token of every prefix that the golden file has.
    let mut worst = 0f64;
    for p in forward["positions_f64"].as_array().unwrap() {
        let position = p["position"].as_u64().unwrap() as usize;
        let mut session = Session::new(&mut engine, &[]).unwrap();
        session.prefill(&ids[..=position]).unwrap();
        let first = (0..).zip(p["logits_first16"].as_array().unwrap());
        let top_ids = p["top5_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize);
        let top = top_ids.zip(p["top5_logits"].as_array().unwrap());
        for (id, want) in first.chain(top) {
            worst = worst.max((f64::from(session.logits()[id]) - want.as_f64().unwrap()).abs());
        }
    }
    eprintln!("largest logit difference {worst:e}");
    assert!(worst <= 2e-3);

    let losses = train_once(&mut engine, &ids, 1.0);
    let mean = losses.iter().map(|l| f64::from(*l)).sum::<f64>() / losses.len() as f64;
    let want = forward["mean_ce_f64"].as_f64().unwrap();
    eprintln!("loss {mean}, want {want}");
    assert!((mean - want).abs() <= 1e-5);
}

/// Decoding token by token gives the logits of the prefill, up to the order of sums. Trainable weights are floats, whose
/// products round no activations; those of block types are compared with the oracle, product by product.
#[test]
fn decoding_agrees_with_prefill() {
    let Some((model, golden)) = files() else { return };
    let ids = ids(&json(golden.join("tokens.json"))["forward_ids"]);
    let mut engine = load(&model, Trainable::Everything);
    let whole = {
        let mut session = Session::new(&mut engine, &[]).unwrap();
        session.prefill(&ids[..20]).unwrap();
        session.logits().to_vec()
    };
    let mut session = Session::new(&mut engine, &[]).unwrap();
    session.prefill(&ids[..3]).unwrap();
    ids[3..20].iter().for_each(|id| session.decode(*id).unwrap());
    let worst = whole.iter().zip(session.logits()).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(worst <= 2e-3, "{worst}");
}

fn train_once(engine: &mut Engine, ids: &[u32], normaliser: f32) -> Vec<f32> {
    let n = ids.len() as u32;
    let positions: Vec<u32> = (0..n).collect();
    let batch = Ragged {
        ids,
        positions: &positions,
        segments: &[[0, n, 0, 0]],
        rows: &positions[..n as usize - 1],
        targets: &ids[1..],
    };
    engine.train_batch(&batch, &[], normaliser).unwrap()
}

/// The norm of every tensor's gradient of the mean loss, all weights trained.
#[test]
fn gradient_norms() {
    let Some((model, golden)) = files() else { return };
    let ids = ids(&json(golden.join("tokens.json"))["forward_ids"]);
    let want = json(golden.join("grads.json"));
    let mut engine = load(&model, Trainable::Everything);
    train_once(&mut engine, &ids, 1.0 / (ids.len() - 1) as f32);
    let (mut worst, mut total) = (0f64, 0f64);
    let named: Vec<_> = engine.params.trainable().cloned().collect();
    for n in &named {
        let hf = engine.model.arch.hf_name(&n.name).unwrap();
        let grad = engine.backend.download_f32(&n.param.grad.unwrap());
        let square: f64 = grad.iter().map(|g| f64::from(*g).powi(2)).sum();
        let expected = want["norm_f64"][&hf].as_f64().unwrap();
        total += square;
        worst = worst.max((square.sqrt() / expected - 1.0).abs());
    }
    let expected = want["total_norm_f64"].as_f64().unwrap();
    eprintln!("{} tensors, worst relative difference {worst:e}", named.len());
    assert!(worst <= 1e-3 && (total.sqrt() / expected - 1.0).abs() <= 1e-5);
}
