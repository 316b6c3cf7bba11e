//! A llama of random weights in memory, of any shape.
#![allow(dead_code)] // not every test needs every shape

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};
use planish_compute::call::{Activation, Heads, RopeStyle};
use planish_compute::quant::Quant;
use planish_engine::Model;
use planish_model::{ARCHS, Layer, ROLES, Rope, Spec, WeightEntry, Weights};
use planish_store::Bytes;

/// `layers` blocks of width `width` (a multiple of 32), heads of 16, a vocabulary of 512; matrices of type `dtype`.
pub fn llama(layers: usize, width: usize, dtype: TypeId) -> Model {
    llama_of(layers, width, 512, dtype)
}

/// The same with a vocabulary of its own.
pub fn llama_of(layers: usize, width: usize, vocab: usize, dtype: TypeId) -> Model {
    let arch = &ARCHS[0];
    let heads = Heads { query: width / 16, kv: width / 32, width: 16, scale: 0.25 };
    let layer =
        Layer { heads, ff: (width * 8 / 3).next_multiple_of(32), act: Activation::Silu, qk_norm: false };
    let spec = Spec {
        arch: arch.name,
        vocab,
        width,
        context: 1024,
        tied: true,
        lens: None,
        norm_eps: 1e-5,
        rope: Rope { base: 1e4, factors: vec![1.0; 8], style: RopeStyle::Interleaved },
        layers: vec![layer; layers],
    };
    let mut shapes =
        vec![("token_embd.weight".to_string(), vocab, width), ("output_norm.weight".into(), 1, width)];
    for (i, norm) in (0..layers).flat_map(|i| [(i, "attn_norm"), (i, "ffn_norm")]) {
        shapes.push((format!("blk.{i}.{norm}.weight"), 1, width));
    }
    for id in spec.linears(&ROLES) {
        let (out, input) = spec.linear_shape(id);
        shapes.push((format!("{}.weight", arch.linear_name(id)), out, input));
    }
    // Tensors lie at multiples of 32 bytes of aligned memory, as in a mapped GGUF file.
    let size: usize = shapes.iter().map(|(_, rows, cols)| (rows * cols * 4).next_multiple_of(32)).sum();
    let (mut bytes, mut entries) = (Vec::<u8>::with_capacity(size + 64), BTreeMap::new());
    bytes.resize(bytes.as_ptr().align_offset(64), 0);
    let start = bytes.len();
    for (i, (name, rows, cols)) in shapes.into_iter().enumerate() {
        let stream = Stream::new(0, Purpose::Init, i as u32);
        bytes.resize(start + (bytes.len() - start).next_multiple_of(32), 0);
        let offset = bytes.len() as u64;
        let (mean, std) = if rows == 1 { (1.0, 0.1) } else { (0.0, 1.0 / (cols as f64).sqrt()) };
        let values: Vec<f32> =
            (0..(rows * cols) as u64).map(|j| (mean + std * stream.normal(j)) as f32).collect();
        let quant = Quant::of(if rows == 1 { TypeId::F32 } else { dtype }).expect("a known type");
        bytes.resize(offset as usize + values.len() / quant.block() * quant.block_bytes(), 0);
        quant.encode.expect("a type that is written")(&values, &mut bytes[offset as usize..]);
        entries.insert(name, WeightEntry { file: 0, offset, rows, cols, dtype: quant.id });
    }
    let weights = Weights { files: vec![Bytes::from_vec(bytes)], entries };
    Model::from_weights(Path::new("random"), arch, spec, weights)
}
