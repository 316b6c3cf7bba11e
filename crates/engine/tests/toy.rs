//! Files of toy: un-permuted, head by head. They compute what llama.cpp's file of the same model does, and what is
//! written of them is such a file.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{TestGguf, distance, logits, sequences};
use planish_base::TypeId;
use planish_compute::Isa;
use planish_engine::{Engine, EngineOptions, Model, Precision, write_model};
use planish_model::Trainable;
use planish_store::gguf::{Gguf, OwnedValue};

/// Heads of the golden models are this wide.
const WIDTH: usize = 8;

fn engine(path: &Path, trainable: Trainable) -> Engine {
    let options = EngineOptions {
        threads: 1,
        isa: Isa::detect(),
        context: 64,
        tokens: 64,
        trainable,
        recompute: false,
        precision: Precision::F32,
    };
    Engine::new(Model::open(path).unwrap(), options).unwrap()
}

/// The golden model with biases of q, k and v, which files of other families of toy have.
fn with_biases(name: &str) -> TestGguf {
    let mut file = TestGguf::golden(name);
    let projections: Vec<(String, u64)> = file
        .tensors
        .iter()
        .filter(|t| ["attn_q", "attn_k", "attn_v"].iter().any(|p| t.0.contains(p)))
        .map(|t| (t.0.replace(".weight", ".bias"), t.1[1]))
        .collect();
    for (i, (name, n)) in projections.into_iter().enumerate() {
        let value = |j: u64| ((i as u64 * 31 + j * 7) % 11) as f32 / 8.0 - 0.5;
        let data = (0..n).flat_map(|j| value(j).to_le_bytes()).collect();
        file.tensors.push((name, vec![n], TypeId::F32, data));
    }
    file
}

#[test]
fn a_file_of_toy_computes_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["tied_gqa", "untied_mha"] {
        with_biases(name).write(&path("plain.gguf"));
        let ids = &sequences(name)[0];
        let want = logits(&mut engine(&path("plain.gguf"), Trainable::Nothing), ids, &[]);
        let gguf = Gguf::open(&path("plain.gguf")).unwrap();
        for scattered in [false, true] {
            with_biases(name).toy(WIDTH, scattered).write(&path("toy.gguf"));
            let toy = Model::open(&path("toy.gguf")).unwrap();
            // Heads that lie together are not copied.
            assert_eq!(toy.weights.files.len() > 1, scattered);
            let chosen = ["blk.0.attn_q.weight", "blk.0.attn_k.bias", "token_embd.weight"];
            let matching = Trainable::Matching(chosen.iter().map(|n| (*n).to_string()).collect());
            for trainable in [Trainable::Nothing, matching, Trainable::Everything] {
                let mut engine = engine(&path("toy.gguf"), trainable);
                // Rotating halves adds the same products in another order.
                let worst = distance(&logits(&mut engine, ids, &[]), &want);
                assert!(worst <= 1e-5, "{worst:e}");
                write_model(&engine, &path("out.gguf")).unwrap();
                // The very bytes of the file that toy's was made from.
                let out = Gguf::open(&path("out.gguf")).unwrap();
                let names = |g: &Gguf| g.tensors().iter().map(|t| t.name.clone()).collect::<BTreeSet<_>>();
                assert_eq!(names(&out), names(&gguf));
                for t in gguf.tensors() {
                    let written = out.tensor(&t.name).unwrap();
                    assert_eq!((&written.dims, written.ty), (&t.dims, t.ty), "{}", t.name);
                    assert!(out.data(written) == gguf.data(t), "{}", t.name);
                }
                assert!(out.metadata().iter().all(|(key, _)| !key.starts_with("toy.")));
            }
        }
    }
}

/// Frozen heads keep their type: the rows of a quantised tensor change places as bytes.
#[test]
fn quantised_heads_are_turned_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let quantised = || TestGguf::golden("tied_gqa").quantised(TypeId::Q8_0);
    quantised().write(&path("plain.gguf"));
    quantised().toy(WIDTH, false).write(&path("toy.gguf"));
    write_model(&engine(&path("toy.gguf"), Trainable::Nothing), &path("out.gguf")).unwrap();
    let (plain, out) = (Gguf::open(&path("plain.gguf")).unwrap(), Gguf::open(&path("out.gguf")).unwrap());
    for t in plain.tensors() {
        let written = out.tensor(&t.name).unwrap();
        assert!(written.ty == t.ty && out.data(written) == plain.data(t), "{}", t.name);
    }
}

#[test]
fn heads_that_make_no_whole_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut TestGguf)| {
        let mut file = TestGguf::golden("tied_gqa").toy(WIDTH, false);
        change(&mut file);
        file.write(&dir.path().join("toy.gguf"));
        match Model::open(&dir.path().join("toy.gguf")) {
            Ok(_) => panic!("accepted"),
            Err(e) => e.to_string(),
        }
    };
    let message = refused(|f| f.tensors.retain(|t| t.0 != "blk.0.attn_q.head_1.weight"));
    assert!(message.contains("`blk.0.attn_q.weight` has no head 1"), "{message}");
    let message = refused(|f| {
        let (_, dims, _, data) = f.tensor("blk.1.attn_v.head_1.weight");
        dims[1] /= 2;
        data.truncate(data.len() / 2);
    });
    assert!(message.contains("head 1 of tensor `blk.1.attn_v.weight` has another shape"), "{message}");
    let message = refused(|f| {
        let whole = f.tensor("blk.0.attn_k.head_0.weight").clone();
        f.tensors.push(("blk.0.attn_k.weight".into(), whole.1, whole.2, whole.3));
    });
    assert!(message.contains("as a whole and head by head"), "{message}");
}

/// Without toy's key the rows are in llama.cpp's order, and then they stay where they are.
#[test]
fn without_the_key_rows_are_not_turned() {
    let dir = tempfile::tempdir().unwrap();
    let file = TestGguf::golden("tied_gqa").toy(WIDTH, false).set("toy.ggml_native", OwnedValue::Bool(false));
    file.write(&dir.path().join("legacy.gguf"));
    let engine = engine(&dir.path().join("legacy.gguf"), Trainable::Nothing);
    write_model(&engine, &dir.path().join("out.gguf")).unwrap();
    let out = Gguf::open(&dir.path().join("out.gguf")).unwrap();
    let data = out.data(out.tensor("blk.0.attn_k.weight").unwrap());
    assert!(data.starts_with(&file.tensors.iter().find(|t| t.0 == "blk.0.attn_k.head_0.weight").unwrap().3));
}
