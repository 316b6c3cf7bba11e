//! A tiny random llama whose matrices are quantised, without tokenizer, and token data for it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test makes files of its own

use std::path::Path;

use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_engine::{Engine, EngineOptions, Model};
use planish_model::Trainable;
use planish_store::gguf::{OwnedValue, Writer};
use planish_text::Example;

pub const VOCAB: u64 = 64;
const WIDTH: u64 = 32;
const KV_WIDTH: u64 = 16;
const FF: u64 = 64;

/// Writes the model with matrices of type `ty`.
pub fn write_model(path: &Path, ty: TypeId) {
    write(path, tensors(ty), |_, _, value| value);
}

/// The model in F32 with a head of its own, and with value j of each tensor changed.
pub fn write_untied(path: &Path, change: impl Fn(&str, u64, f32) -> f32) {
    let mut tensors = tensors(TypeId::F32);
    tensors.push(("output.weight".to_string(), vec![WIDTH, VOCAB], TypeId::F32));
    write(path, tensors, change);
}

fn write(path: &Path, tensors: Vec<(String, Vec<u64>, TypeId)>, change: impl Fn(&str, u64, f32) -> f32) {
    let mut w = Writer::new();
    w.set("general.architecture", "llama".into());
    w.set("general.name", "tiny".into());
    for (key, value) in [
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("block_count", 2),
        ("feed_forward_length", FF as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        w.set(&format!("llama.{key}"), OwnedValue::U32(value));
    }
    w.set("llama.attention.layer_norm_rms_epsilon", OwnedValue::F32(1e-5));
    for (name, dims, ty) in &tensors {
        w.tensor(name, dims, *ty).unwrap();
    }
    w.write(path, |i, sink| {
        let (name, dims, ty) = &tensors[i];
        let stream = Stream::new(7, Purpose::Init, i as u32);
        let value = |j: u64| if dims.len() == 1 { 1.0 } else { stream.normal(j) as f32 * 0.3 };
        let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|j| change(name, j, value(j))).collect();
        let quant = Quant::of(*ty).unwrap();
        let mut bytes = vec![0; values.len() / quant.block() * quant.block_bytes()];
        (quant.encode.unwrap())(&values, &mut bytes);
        sink.write_all(&bytes).unwrap();
        Ok(())
    })
    .unwrap();
}

fn tensors(ty: TypeId) -> Vec<(String, Vec<u64>, TypeId)> {
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![WIDTH, VOCAB], ty),
        ("output_norm.weight".to_string(), vec![WIDTH], TypeId::F32),
    ];
    for block in 0..2 {
        let mut add = |name: &str, dims: &[u64]| {
            let ty = if dims.len() == 1 { TypeId::F32 } else { ty };
            tensors.push((format!("blk.{block}.{name}.weight"), dims.to_vec(), ty));
        };
        add("attn_norm", &[WIDTH]);
        add("attn_q", &[WIDTH, WIDTH]);
        add("attn_k", &[WIDTH, KV_WIDTH]);
        add("attn_v", &[WIDTH, KV_WIDTH]);
        add("attn_output", &[WIDTH, WIDTH]);
        add("ffn_norm", &[WIDTH]);
        add("ffn_gate", &[WIDTH, FF]);
        add("ffn_up", &[WIDTH, FF]);
        add("ffn_down", &[FF, WIDTH]);
    }
    tensors
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
    let options =
        EngineOptions { threads, isa: Isa::detect(), context: 64, tokens: 256, trainable, recompute: false };
    Engine::new(Model::open(path).unwrap(), options).unwrap()
}
