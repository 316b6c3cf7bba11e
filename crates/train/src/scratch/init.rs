//! The first values of a new model: what each tensor is drawn from, and the file they are written to.

use std::io::Write;
use std::path::Path;

use planish_base::rng::{Purpose, Stream};
use planish_base::{Result, TypeId};
use planish_model::{Arch, LinearId, Role, Spec, dims};
use planish_store::fs;
use planish_store::gguf::{OwnedValue, Writer};

use super::donor::Embedding;

/// What a tensor begins as.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Every value the same.
    Constant(f32),
    /// Normal values around 0 of this deviation.
    Normal(f64),
    /// These values.
    Values(Vec<f32>),
    /// Bytes of this type.
    Bytes(TypeId, Vec<u8>),
}

/// A tensor of a new model.
#[derive(Clone, Debug)]
pub struct First {
    /// Its GGUF name.
    pub name: String,
    /// Rows; a vector has one.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// What it begins as.
    pub fill: Fill,
}

/// Deviation of the values of embedding and head.
const TABLE_DEVIATION: f64 = 0.02;

/// Every tensor of a new model, in the order of its file: matrices normal with deviation `scale` / sqrt(width), down
/// projections `scale` / sqrt(ff), tables 0.02, norms 1, biases 0.
pub fn tensors(
    spec: &Spec,
    embedding: Embedding,
    scale: f64,
    scaled_residuals: bool,
    qkv_bias: bool,
) -> Vec<First> {
    let row = |name: String, cols, x| First { name, rows: 1, cols, fill: Fill::Constant(x) };
    let mut all = embedding.tensors(spec, TABLE_DEVIATION);
    all.push(row("output_norm.weight".into(), spec.width, 1.0));
    if !spec.tied {
        let (rows, cols, fill) = (spec.vocab, spec.width, Fill::Normal(TABLE_DEVIATION));
        all.push(First { name: "output.weight".into(), rows, cols, fill });
    }
    let family = Arch::named(spec.arch).expect("a shape is of a known family");
    let residual = if scaled_residuals { 1.0 / (2.0 * spec.layers.len() as f64).sqrt() } else { 1.0 };
    for (i, layer) in spec.layers.iter().enumerate() {
        all.push(row(format!("blk.{i}.attn_norm.weight"), spec.width, 1.0));
        if layer.qk_norm {
            all.push(row(format!("blk.{i}.attn_q_norm.weight"), layer.heads.width, 1.0));
            all.push(row(format!("blk.{i}.attn_k_norm.weight"), layer.heads.width, 1.0));
        }
        all.push(row(format!("blk.{i}.ffn_norm.weight"), spec.width, 1.0));
        for role in planish_model::ROLES {
            let id = LinearId { layer: i, role };
            let (rows, cols) = spec.linear_shape(id);
            let fan = if role == Role::Down { layer.ff } else { spec.width };
            let into_stream = if matches!(role, Role::O | Role::Down) { residual } else { 1.0 };
            let name = family.linear_name(id);
            if qkv_bias && matches!(role, Role::Q | Role::K | Role::V) {
                all.push(row(format!("{name}.bias"), rows, 0.0));
            }
            let fill = Fill::Normal(scale * into_stream / (fan as f64).sqrt());
            all.push(First { name: format!("{name}.weight"), rows, cols, fill });
        }
    }
    if let Some(factors) = dims::rope_factors(&spec.rope) {
        let (name, cols, fill) = ("rope_freqs.weight".into(), factors.len(), Fill::Values(factors));
        all.push(First { name, rows: 1, cols, fill });
    }
    all
}

/// Writes the file. Value j of tensor i is a function of (seed, i, j).
///
/// # Errors
/// Those of writing files.
pub fn write(
    path: &Path,
    spec: &Spec,
    name: &str,
    tokenizer: &[(String, OwnedValue)],
    tensors: &[First],
    seed: u64,
) -> Result<()> {
    let mut writer = Writer::new();
    dims::to_gguf(spec).into_iter().for_each(|(key, value)| writer.set(&key, value));
    writer.set("general.name", OwnedValue::from(name));
    writer.set("general.file_type", OwnedValue::U32(0));
    tokenizer.iter().for_each(|(key, value)| writer.set(key, value.clone()));
    for t in tensors {
        let dims = [t.cols as u64, t.rows as u64];
        let ty = if let Fill::Bytes(ty, _) = t.fill { ty } else { TypeId::F32 };
        writer.tensor(&t.name, if t.rows == 1 { &dims[..1] } else { &dims }, ty)?;
    }
    writer.write(path, |i, sink| {
        write_values(&tensors[i], Stream::new(seed, Purpose::Init, i as u32), sink).map_err(fs::write_failed)
    })
}

fn write_values(t: &First, stream: Stream, sink: &mut dyn Write) -> std::io::Result<()> {
    let mut floats = |value: &dyn Fn(usize) -> f32| {
        // Row by row: a table may be large.
        (0..t.rows).try_for_each(|r| {
            let row = r * t.cols..(r + 1) * t.cols;
            let bytes: Vec<u8> = row.flat_map(|i| value(i).to_le_bytes()).collect();
            sink.write_all(&bytes)
        })
    };
    match &t.fill {
        Fill::Constant(x) => floats(&|_| *x),
        Fill::Normal(deviation) => floats(&|i| (stream.normal(i as u64) * deviation) as f32),
        Fill::Values(values) => floats(&|i| values[i]),
        Fill::Bytes(_, bytes) => sink.write_all(bytes),
    }
}
