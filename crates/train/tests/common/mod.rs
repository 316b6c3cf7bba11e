//! A tiny random llama whose matrices are quantised, without tokenizer, and token data for it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test makes files of its own

use std::path::Path;

use planish_base::TypeId;
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::Trainable;
use planish_store::gguf::{OwnedValue, Writer};
use planish_testkit::tiny;
use planish_text::Example;

pub const VOCAB: u64 = 64;

/// Writes the model with matrices of type `ty`.
pub fn write_model(path: &Path, ty: TypeId) {
    write(path, tiny::tensors(VOCAB, ty, ty), |_, _, value| value);
}

/// The model in F32 with a head of its own, and with value j of each tensor changed.
pub fn write_untied(path: &Path, change: impl Fn(&str, u64, f32) -> f32) {
    let mut tensors = tiny::tensors(VOCAB, TypeId::F32, TypeId::F32);
    tensors.push(tiny::head(VOCAB, TypeId::F32));
    write(path, tensors, change);
}

fn write(path: &Path, tensors: Vec<tiny::Tensor>, change: impl Fn(&str, u64, f32) -> f32) {
    let mut w = Writer::new();
    w.set("general.architecture", "llama".into());
    w.set("general.name", "tiny".into());
    for (key, value) in [("context_length", 64)].iter().chain(tiny::KEYS) {
        w.set(&format!("llama.{key}"), OwnedValue::U32(*value));
    }
    w.set("llama.attention.layer_norm_rms_epsilon", OwnedValue::F32(1e-5));
    for (name, dims, ty) in &tensors {
        w.tensor(name, dims, *ty).unwrap();
    }
    w.write(path, |i, sink| {
        let (name, dims, ty) = &tensors[i];
        let values: Vec<f32> =
            tiny::values(i, dims).into_iter().enumerate().map(|(j, v)| change(name, j as u64, v)).collect();
        sink.write_all(&encode(*ty, &values)).unwrap();
        Ok(())
    })
    .unwrap();
}

fn encode(ty: TypeId, values: &[f32]) -> Vec<u8> {
    let quant = Quant::of(ty).unwrap();
    let mut bytes = vec![0; values.len() / quant.block() * quant.block_bytes()];
    match quant.encode {
        Some(encode) => encode(values, &mut bytes),
        None => values.chunks(32).zip(bytes.chunks_mut(20)).for_each(|(x, block)| q4_1(x, block)),
    }
    bytes
}

/// A block of Q4_1: scale and minimum as halves, then the codes of 0 to 15 beside those of 16 to 31.
fn q4_1(x: &[f32], block: &mut [u8]) {
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let scale = ((high - low) / 15.0).max(1e-4);
    (Quant::of(TypeId::F16).unwrap().encode.unwrap())(&[scale, low], &mut block[..4]);
    let code = |v: f32| ((v - low) / scale).round() as u8;
    (0..16).for_each(|i| block[4 + i] = code(x[i]).min(15) | code(x[16 + i]).min(15) << 4);
}

/// Ragged examples that have something to learn: each counts up by its own stride.
pub fn examples(n: usize) -> Vec<Example> {
    let make = |i: usize| {
        let length = 6 + i * 7 % 19;
        let ids = (0..length).map(|j| ((i + j * (1 + i % 5)) % VOCAB as usize) as u32).collect();
        let trained = (0..length).map(|j| j > 1).collect();
        Example { ids, trained, place: format!("data.jsonl:{}", i + 1) }
    };
    (0..n).map(make).collect()
}

/// Writes examples as token ids with labels.
pub fn write_data(path: &Path, examples: &[Example]) {
    let line = |e: &Example| {
        let label = |(id, t): (&u32, &bool)| if *t { i64::from(*id) } else { -100 };
        let labels: Vec<i64> = e.ids.iter().zip(&e.trained).map(label).collect();
        serde_json::json!({"input_ids": e.ids, "labels": labels}).to_string() + "\n"
    };
    std::fs::write(path, examples.iter().map(line).collect::<String>()).unwrap();
}

pub fn engine(path: &Path, trainable: Trainable, threads: usize) -> Engine {
    let options = EngineOptions {
        threads,
        isa: Isa::detect(),
        context: 64,
        tokens: 256,
        trainable,
        recompute: false,
        precision: Precision::F32,
    };
    Engine::new(Model::open(path).unwrap(), options).unwrap()
}
