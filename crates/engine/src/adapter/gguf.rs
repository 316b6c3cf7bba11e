//! Adapter GGUF files as llama.cpp reads them: `general.type` = adapter, `adapter.type` = lora,
//! `adapter.lora.alpha`, and for each adapted matrix `NAME.weight.lora_a` [in, r] and `NAME.weight.lora_b` [r, out]. Of
//! the embedding lora_a is [r, vocabulary], since it is looked up, and lora_b [r, width].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_model::Role;
use planish_store::fs;
use planish_store::gguf::{Gguf, Metadata, OwnedValue, TensorInfo, Writer};

use super::{
    AdapterFile, BaseInfo, HostPair, Provenance, Raw, base_name, gguf_order, gguf_scale, reorder, same,
    transposed,
};
use crate::model::Model;

/// llama.cpp does not know this key: the hash of the base, so that another base is noticed where shapes agree.
const BASE_HASH: &str = "planish.base.sha256";
/// How the factor was stated, for PEFT directories written from this file.
const RSLORA: &str = "planish.adapter.rslora";

const EMBEDDING: &str = "token_embd";

/// Types that llama.cpp loads in adapters.
const TYPES: [TypeId; 4] = [TypeId::F32, TypeId::F16, TypeId::BF16, TypeId::Q8_0];

pub(super) fn read(gguf: &Gguf) -> Result<Raw> {
    let m = gguf.metadata();
    check_kind(m)?;
    let alpha = m.require_f32("adapter.lora.alpha")?;
    if !alpha.is_finite() {
        return Err(Error::input("adapter", format!("`adapter.lora.alpha` is {alpha}")));
    }
    let mut halves: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for t in gguf.tensors() {
        let (name, which) = split_name(&t.name)?;
        halves.entry(name).or_default()[which] = Some(t);
    }
    let mut pairs = BTreeMap::new();
    for (name, both) in halves {
        let [Some(a), Some(b)] = both else {
            let missing = if both[0].is_none() { "lora_a" } else { "lora_b" };
            let message = format!("tensor `{name}.weight.{missing}` is missing, its other half is there");
            return Err(Error::input("adapter", message).with_hint("the file is incomplete; write it again"));
        };
        pairs.insert(name.to_string(), pair(gguf, alpha, name == EMBEDDING, a, b)?);
    }
    if pairs.is_empty() {
        return Err(Error::input("adapter", "the adapter has no tensors"));
    }
    let text = |key: &str| m.str(key).map(|v| v.map(str::to_string));
    let base = BaseInfo { name: text("general.base_model.0.name")?, sha256: text(BASE_HASH)? };
    let arch = Some(m.require_str("general.architecture")?.to_string());
    Ok(Raw { alpha, rslora: m.bool(RSLORA)?.unwrap_or(false), pairs, base, arch })
}

fn check_kind(m: &Metadata) -> Result<()> {
    let kind = m.str("general.type")?.unwrap_or("model");
    if kind != "adapter" {
        let message = format!("the file is a `{kind}`, expected an adapter");
        return Err(Error::input("adapter", message).with_hint("give an adapter GGUF or a PEFT directory"));
    }
    let kind = m.require_str("adapter.type")?;
    if kind != "lora" {
        let message = format!("the adapter is of type `{kind}`, expected `lora`");
        return Err(Error::input("adapter", message).with_hint("planish applies LoRA adapters"));
    }
    if m.contains("adapter.alora.invocation_tokens") {
        let message = "the adapter is an activated LoRA, which acts only after its invocation tokens";
        return Err(Error::input("adapter", message).with_hint("planish applies adapters to every token"));
    }
    Ok(())
}

/// `blk.0.attn_q.weight.lora_a` to (`blk.0.attn_q`, 0), lora_b to 1.
fn split_name(name: &str) -> Result<(&str, usize)> {
    let halves = [(".weight.lora_a", 0), (".weight.lora_b", 1)];
    halves.into_iter().find_map(|(end, i)| Some((name.strip_suffix(end)?, i))).ok_or_else(|| {
        Error::input("adapter", format!("tensor `{name}` is neither the A nor the B of an adapted matrix"))
            .with_hint(
                "names end in .weight.lora_a or .weight.lora_b; biases and whole tensors must be merged",
            )
    })
}

fn pair(gguf: &Gguf, alpha: f32, embedding: bool, a: &TensorInfo, b: &TensorInfo) -> Result<HostPair> {
    let rank = match (&a.dims[..], &b.dims[..]) {
        ([r, _], [rank, _]) if embedding && r == rank => *rank as usize,
        ([_, r], [rank, _]) if !embedding && r == rank => *rank as usize,
        _ => {
            let expected = if embedding { "[rank, vocabulary]" } else { "[in, rank]" };
            let message = format!(
                "tensors `{}` {:?} and `{}` {:?} are not a pair, expected {expected} and [rank, out]",
                a.name, a.dims, b.name, b.dims
            );
            return Err(Error::input("adapter", message).with_hint("the file is damaged; write it again"));
        }
    };
    let (mut a, mut b) = (values(gguf, a)?, values(gguf, b)?);
    if embedding {
        (a, b) = (transposed(&b, rank), a);
    }
    Ok(HostPair { rank, a, b, scale: gguf_scale(alpha, rank), magnitude: None })
}

fn values(gguf: &Gguf, t: &TensorInfo) -> Result<Vec<f32>> {
    if !TYPES.contains(&t.ty) {
        let message = format!("tensor `{}` has type {}", t.name, t.ty.name());
        return Err(Error::input("adapter", message).with_hint("adapters are F32, F16, BF16 or Q8_0"));
    }
    let mut values = vec![0f32; t.elements() as usize];
    Quant::of(t.ty)?.decode_range(Isa::detect(), gguf.data(t), 0, &mut values);
    if values.iter().any(|v| !v.is_finite()) {
        let message = format!("tensor `{}` holds a value that is not finite", t.name);
        return Err(
            Error::input("adapter", message).with_hint("the adapter is damaged or its training diverged")
        );
    }
    Ok(values)
}

pub(super) fn write(file: &AdapterFile, model: &Model, path: &Path, provenance: &Provenance) -> Result<()> {
    let mut writer = Writer::new();
    let name = file.base.name.clone().unwrap_or_else(|| base_name(model));
    let own = provenance.name.clone().unwrap_or_else(|| format!("{}-lora", model.name()));
    let text = |writer: &mut Writer, key: &str, value: &str| writer.set(key, value.into());
    text(&mut writer, "general.architecture", model.arch.name);
    text(&mut writer, "general.type", "adapter");
    text(&mut writer, "general.name", &own);
    writer.set("general.base_model.count", OwnedValue::U32(1));
    text(&mut writer, "general.base_model.0.name", &name);
    writer.set("general.file_type", OwnedValue::U32(0));
    text(&mut writer, "adapter.type", "lora");
    writer.set("adapter.lora.alpha", OwnedValue::F32(file.alpha));
    text(&mut writer, BASE_HASH, model.sha256());
    if file.rslora {
        writer.set(RSLORA, OwnedValue::Bool(true));
    }
    for (key, value) in &provenance.keys {
        writer.set(key, value.clone());
    }
    let mut data: Vec<Cow<[f32]>> = Vec::new();
    for (&id, p) in &file.pairs {
        let name = model.arch.linear_name(id);
        let (rank, input, out) = (p.rank as u64, p.inputs() as u64, p.outputs() as u64);
        let b = reorder(model, id, folded(file.alpha, p), model.spec.rope.style, gguf_order(model));
        let (a_dims, b_dims) = match id.role {
            Role::Embed => ([rank, out], [rank, input]),
            _ => ([input, rank], [rank, out]),
        };
        writer.tensor(&format!("{name}.weight.lora_a"), &a_dims, TypeId::F32)?;
        writer.tensor(&format!("{name}.weight.lora_b"), &b_dims, TypeId::F32)?;
        match id.role {
            Role::Embed => data.extend([b.into(), transposed(&p.a, p.inputs()).into()]),
            _ => data.extend([Cow::Borrowed(&p.a[..]), b.into()]),
        }
    }
    writer.write(path, |i, sink| {
        let bytes: Vec<u8> = data[i].iter().flat_map(|v| v.to_le_bytes()).collect();
        sink.write_all(&bytes).map_err(fs::write_failed)
    })
}

/// B, with what the file's one alpha cannot say about the factor multiplied in.
fn folded(alpha: f32, p: &HostPair) -> Vec<f32> {
    let (want, stated) = (f64::from(p.scale), f64::from(gguf_scale(alpha, p.rank)));
    if same(want, stated) {
        return p.b.clone();
    }
    p.b.iter().map(|v| (f64::from(*v) * want / stated) as f32).collect()
}
