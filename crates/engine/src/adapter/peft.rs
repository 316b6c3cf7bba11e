//! PEFT adapter directories: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_model::LinearId;
use planish_store::fs;
use planish_store::safetensors::{self, Dtype, SafeTensors, Tensor};
use serde_json::{Value, json};

use super::config::Config;
use super::{
    AdapterFile, BaseInfo, HostPair, Raw, base_name, file_alpha, hf_module, peft_order, reorder, same,
};
use crate::model::Model;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";
const CONFIG_BYTES: u64 = 4 << 20;

pub(super) fn read(dir: &Path) -> Result<Raw> {
    check_files(dir).map_err(|e| e.in_file(dir))?;
    let text = fs::read_text_bounded(&dir.join(CONFIG), CONFIG_BYTES)?;
    let tensors = SafeTensors::open(&dir.join(WEIGHTS))?;
    parse(&text, &tensors).map_err(|e| e.in_file(dir))
}

fn check_files(dir: &Path) -> Result<()> {
    if !fs::exists(&dir.join(CONFIG)) {
        return Err(Error::input("adapter", format!("the directory has no {CONFIG}"))
            .with_hint("give an adapter GGUF, or a directory that peft's save_pretrained wrote"));
    }
    if fs::exists(&dir.join(WEIGHTS)) {
        return Ok(());
    }
    let error = Error::input("adapter", format!("the directory has no {WEIGHTS}"));
    Err(match fs::exists(&dir.join("adapter_model.bin")) {
        true => error.with_hint(
            "adapter_model.bin is a Python pickle, which can run code when it is read: load the adapter with \
             peft and save it with save_pretrained(.., safe_serialization=True)",
        ),
        false => error.with_hint("the directory is incomplete"),
    })
}

fn parse(text: &str, tensors: &SafeTensors) -> Result<Raw> {
    let json = serde_json::from_str(text).map_err(|e| Error::input("json", format!("{CONFIG}: {e}")))?;
    let config = Config::parse(&json)?;
    let pairs = read_pairs(tensors, &config)?;
    let rank = config.rank.unwrap_or_else(|| pairs.values().next().map_or(1, |p| p.rank));
    Ok(Raw {
        alpha: file_alpha(config.alpha as f32, rank, config.rslora),
        rslora: config.rslora,
        pairs,
        base: BaseInfo { name: config.base, sha256: None },
        arch: None,
    })
}

fn read_pairs(tensors: &SafeTensors, config: &Config) -> Result<BTreeMap<String, HostPair>> {
    let mut halves: BTreeMap<&str, [Option<(&str, Tensor)>; 2]> = BTreeMap::new();
    for name in tensors.names() {
        let (module, which) = split_name(name)?;
        let tensor = tensors.get(name).expect("a listed tensor exists");
        let slot = &mut halves.entry(module).or_default()[which];
        if slot.replace((name, tensor)).is_some() {
            let message = format!("tensor `{name}` is there under a second name");
            return Err(Error::input("adapter", message).with_hint("save one adapter at a time"));
        }
    }
    let mut pairs = BTreeMap::new();
    for (module, both) in halves {
        let [Some((a_name, a)), Some((b_name, b))] = both else {
            let missing = if both[0].is_none() { "lora_A" } else { "lora_B" };
            let message = format!("`{module}` has no {missing}, its other half is there");
            return Err(Error::input("adapter", message).with_hint("the file is incomplete; save it again"));
        };
        let rank = match (&a.shape[..], &b.shape[..]) {
            ([r, input], [out, rank]) if r == rank && *r > 0 && *input > 0 && *out > 0 => *r,
            _ => {
                let message = format!(
                    "tensors `{a_name}` {:?} and `{b_name}` {:?} are not a pair, expected [rank, in] and [out, rank]",
                    a.shape, b.shape
                );
                return Err(Error::input("adapter", message));
            }
        };
        let scale = config.scale(module, rank)?;
        let pair = HostPair { rank, a: values(a_name, &a)?, b: values(b_name, &b)?, scale };
        pairs.insert(module.to_string(), pair);
    }
    if pairs.is_empty() {
        return Err(Error::input("adapter", format!("{WEIGHTS} has no tensors")));
    }
    Ok(pairs)
}

/// `base_model.model.MODULE.lora_A.weight` to (MODULE, 0), lora_B to 1. Files saved from a live model have the
/// adapter's name after lora_A: `.lora_A.default.weight`.
fn split_name(name: &str) -> Result<(&str, usize)> {
    let stem = name.strip_prefix(PREFIX).and_then(|n| n.strip_suffix(".weight"));
    let half = |(mark, i)| {
        let (module, adapter) = stem?.rsplit_once(mark)?;
        let plain = adapter.is_empty() || (adapter.starts_with('.') && adapter[1..].find('.').is_none());
        plain.then_some((module, i))
    };
    [(".lora_A", 0), (".lora_B", 1)].into_iter().find_map(half).ok_or_else(|| {
        let hint = if name.contains("lora_embedding") {
            "adapters of the embedding are not supported: merge it into its base with peft"
        } else if name.contains("lora_magnitude_vector") {
            "this is a DoRA adapter: merge it into its base with peft"
        } else {
            "biases and whole trained modules are not adapters: merge them into the base with peft"
        };
        Error::input("adapter", format!("tensor `{name}` is neither the A nor the B of a linear map"))
            .with_hint(hint)
    })
}

fn values(name: &str, t: &Tensor) -> Result<Vec<f32>> {
    let ty = match t.dtype {
        Dtype::F32 => TypeId::F32,
        Dtype::F16 => TypeId::F16,
        Dtype::BF16 => TypeId::BF16,
        other => {
            return Err(Error::input("adapter", format!("tensor `{name}` has type {other:?}"))
                .with_hint("adapters are F32, F16 or BF16"));
        }
    };
    let mut values = vec![0f32; t.shape.iter().product()];
    Quant::of(ty)?.decode_range(Isa::detect(), t.data, 0, &mut values);
    if values.iter().any(|v| !v.is_finite()) {
        let message = format!("tensor `{name}` holds a value that is not finite");
        return Err(
            Error::input("adapter", message).with_hint("the adapter is damaged or its training diverged")
        );
    }
    Ok(values)
}

pub(super) fn write(file: &AdapterFile, model: &Model, dir: &Path) -> Result<()> {
    let mut tensors = Vec::with_capacity(2 * file.pairs.len());
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (&id, p) in &file.pairs {
        let module = hf_module(model, id);
        let b = reorder(model, id, p.b.clone(), model.spec.rope.style, peft_order(model));
        let name = |half: &str| format!("{PREFIX}{module}.{half}.weight");
        tensors.push((name("lora_A"), Dtype::F32, vec![p.rank, p.inputs()], bytes(&p.a)));
        tensors.push((name("lora_B"), Dtype::F32, vec![p.outputs(), p.rank], bytes(&b)));
    }
    let mut config = serde_json::to_string_pretty(&config(file, model)).expect("strings and numbers");
    config.push('\n');
    let format = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let both = |dir: &Path| {
        fs::write_atomic(&dir.join(CONFIG), |out| {
            out.write_all(config.as_bytes()).map_err(fs::write_failed)
        })?;
        safetensors::write(&dir.join(WEIGHTS), &tensors, &format)
    };
    if fs::is_dir(dir) { both(dir) } else { fs::write_dir_atomic(dir, both) }
}

fn config(file: &AdapterFile, model: &Model) -> Value {
    let rank = most_common(file.pairs.values().map(|p| p.rank as u64)).unwrap_or(1) as usize;
    let alpha = |p: &HostPair| alpha_of(p.scale, p.rank, file.rslora);
    let main_alpha = most_common(file.pairs.values().map(|p| alpha(p).to_bits())).map_or(1.0, f64::from_bits);
    let others = |value: &dyn Fn(&HostPair) -> Option<Value>| -> Value {
        let entries = file.pairs.iter().filter_map(|(&id, p)| Some((hf_module(model, id), value(p)?)));
        Value::Object(entries.collect())
    };
    let base = file.base.name.clone().unwrap_or_else(|| base_name(model));
    json!({
        "alpha_pattern": others(&|p| (alpha(p) != main_alpha).then(|| plain(alpha(p)))),
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "bias": "none",
        "ensure_weight_tying": false,
        "exclude_modules": null,
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layer_replication": null,
        "layers_pattern": null,
        "layers_to_transform": null,
        "loftq_config": {},
        "lora_alpha": plain(main_alpha),
        "lora_bias": false,
        "lora_dropout": 0.0,
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": others(&|p| (p.rank != rank).then(|| json!(p.rank))),
        "revision": null,
        "target_modules": target_modules(file, model),
        "target_parameters": null,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": null,
        "use_dora": false,
        "use_rslora": file.rslora,
    })
}

/// The alpha that gives this factor: a whole number where one does, else the nearest f32.
fn alpha_of(scale: f32, rank: usize, rslora: bool) -> f64 {
    let divisor = if rslora { (rank as f64).sqrt() } else { rank as f64 };
    let alpha = f64::from(scale) * divisor;
    if same(alpha, alpha.round()) { alpha.round() } else { decimal(alpha as f32) }
}

/// The double that prints with the digits of an f32.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

/// A whole number is written without a fraction: PEFT declares `lora_alpha` as an integer.
fn plain(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

/// Short names where every block has the map, else full paths: PEFT adapts every module whose path ends with a name.
fn target_modules(file: &AdapterFile, model: &Model) -> Vec<String> {
    let blocks = model.spec.layers.len();
    let mut names = Vec::new();
    for role in file.roles() {
        let layers: Vec<usize> = file.pairs.keys().filter(|id| id.role == role).map(|id| id.layer).collect();
        let modules = layers.iter().map(|&layer| hf_module(model, LinearId { layer, role }));
        match layers.len() == blocks {
            true => names.extend(modules.take(1).map(|m| m.rsplit('.').next().unwrap_or(&m).to_string())),
            false => names.extend(modules),
        }
    }
    names.sort();
    names
}

/// The most frequent value, the smallest of several.
fn most_common(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts = BTreeMap::new();
    values.for_each(|v| *counts.entry(v).or_insert(0usize) += 1);
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, n)| *n == most).map(|(v, _)| v)
}
