//! The llama of two blocks that tests write into files: every row is whole blocks of 32.

use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};

const WIDTH: u64 = 32;
const KV_WIDTH: u64 = 16;
const FF: u64 = 64;

/// Its metadata below `llama.`, but for the length of its context.
pub const KEYS: &[(&str, u32)] = &[
    ("embedding_length", WIDTH as u32),
    ("block_count", 2),
    ("feed_forward_length", FF as u32),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 1),
];

/// Name, dimensions as a GGUF file has them, and type.
pub type Tensor = (String, Vec<u64>, TypeId);

/// All tensors with a tied head; vectors are F32.
pub fn tensors(vocab: u64, embedding: TypeId, matrices: TypeId) -> Vec<Tensor> {
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![WIDTH, vocab], embedding),
        ("output_norm.weight".to_string(), vec![WIDTH], TypeId::F32),
    ];
    for block in 0..2 {
        let mut add = |name: &str, dims: &[u64]| {
            let ty = if dims.len() == 1 { TypeId::F32 } else { matrices };
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

/// A head of its own.
pub fn head(vocab: u64, ty: TypeId) -> Tensor {
    ("output.weight".to_string(), vec![WIDTH, vocab], ty)
}

/// The values of tensor `i`: norms are 1, matrices random.
pub fn values(i: usize, dims: &[u64]) -> Vec<f32> {
    let stream = Stream::new(7, Purpose::Init, i as u32);
    let value = |j: u64| if dims.len() == 1 { 1.0 } else { stream.normal(j) as f32 * 0.3 };
    (0..dims.iter().product::<u64>()).map(value).collect()
}
