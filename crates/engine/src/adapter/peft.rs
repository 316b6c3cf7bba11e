//! PEFT adapter directories: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_model::{LinearId, Role};
use planish_store::fs;
use planish_store::safetensors::{self, Dtype, SafeTensors, Tensor};
use serde_json::{Value, json};

use super::config::Config;
use super::{
    AdapterFile, BaseInfo, HostPair, Raw, base_name, file_alpha, hf_module, peft_order, reorder, same,
    transposed,
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

/// What of a module a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    A,
    B,
    /// [rank, vocabulary]: looked up.
    EmbeddingA,
    /// [width, rank].
    EmbeddingB,
    Magnitude,
}

/// The end of a tensor's name, and what it says.
const PARTS: [(&str, Part); 5] = [
    (".lora_A", Part::A),
    (".lora_B", Part::B),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_magnitude_vector", Part::Magnitude),
];

/// The tensors of a module: A, B and the magnitude.
#[derive(Default)]
struct Module<'a> {
    parts: [Option<(&'a str, Tensor<'a>)>; 3],
    embedding: bool,
}

fn read_pairs(tensors: &SafeTensors, config: &Config) -> Result<BTreeMap<String, HostPair>> {
    let mut modules: BTreeMap<&str, Module> = BTreeMap::new();
    for name in tensors.names().filter(|n| !is_base(n)) {
        let (module, part) = split_name(name)?;
        let tensor = tensors.get(name).expect("a listed tensor exists");
        let module = modules.entry(module).or_default();
        module.embedding |= matches!(part, Part::EmbeddingA | Part::EmbeddingB);
        let slot = match part {
            Part::A | Part::EmbeddingA => 0,
            Part::B | Part::EmbeddingB => 1,
            Part::Magnitude => 2,
        };
        if module.parts[slot].replace((name, tensor)).is_some() {
            let message = format!("tensor `{name}` is there under a second name");
            return Err(Error::input("adapter", message).with_hint("save one adapter at a time"));
        }
    }
    let pair = |(module, parts): (&str, Module)| Ok((module.to_string(), pair(module, &parts, config)?));
    let pairs = modules.into_iter().map(pair).collect::<Result<BTreeMap<_, _>>>()?;
    if pairs.is_empty() {
        return Err(Error::input("adapter", format!("{WEIGHTS} has no tensors")));
    }
    Ok(pairs)
}

fn pair(module: &str, m: &Module, config: &Config) -> Result<HostPair> {
    let [Some((a_name, a)), Some((b_name, b)), magnitude] = &m.parts else {
        let missing = if m.parts[0].is_none() { "lora_A" } else { "lora_B" };
        let message = format!("`{module}` has no {missing}, its other half is there");
        return Err(Error::input("adapter", message).with_hint("the file is incomplete; save it again"));
    };
    let (rank, out) = match (&a.shape[..], &b.shape[..]) {
        ([r, input], [out, rank]) if r == rank && *r > 0 && *input > 0 && *out > 0 => (*r, *out),
        _ => {
            let message = format!(
                "tensors `{a_name}` {:?} and `{b_name}` {:?} are not a pair, expected [rank, in] and [out, rank]",
                a.shape, b.shape
            );
            return Err(Error::input("adapter", message));
        }
    };
    if magnitude.is_some() != config.dora {
        let (says, has) = if config.dora { ("", "no") } else { ("not ", "a") };
        let message =
            format!("`{module}` has {has} magnitude, adapter_config.json does {says}say `use_dora`");
        return Err(Error::input("adapter", message)
            .with_hint("the configuration belongs to another adapter_model.safetensors"));
    }
    let scale = config.scale(module, rank)?;
    let (mut a, mut b) = (values(a_name, a)?, values(b_name, b)?);
    if m.embedding {
        // Here B is the half that has a row for each token.
        (a, b) = (transposed(&b, rank), transposed(&a, a.len() / rank));
    }
    let magnitude = match magnitude {
        Some((name, m)) if m.shape.iter().product::<usize>() != out => {
            let message = format!("tensor `{name}` {:?} is not of {out} rows", m.shape);
            return Err(Error::input("adapter", message));
        }
        Some((name, m)) => Some(values(name, m)?),
        None => None,
    };
    Ok(HostPair { rank, a, b, scale, magnitude })
}

/// peft saves the table of an adapted embedding with it, as it was.
fn is_base(name: &str) -> bool {
    name.ends_with(".embed_tokens.base_layer.weight") || name.ends_with(".lm_head.base_layer.weight")
}

/// `base_model.model.MODULE.lora_A.weight` to (MODULE, A). Embeddings and magnitudes have no `.weight`; files saved
/// from a live model have the adapter's name after lora_A: `.lora_A.default.weight`.
fn split_name(name: &str) -> Result<(&str, Part)> {
    let stem = name.strip_prefix(PREFIX).map(|n| n.strip_suffix(".weight").unwrap_or(n));
    let part = |(mark, part)| {
        let (module, adapter) = stem?.rsplit_once(mark)?;
        let plain = adapter.is_empty() || (adapter.starts_with('.') && adapter[1..].find('.').is_none());
        plain.then_some((module, part))
    };
    PARTS.into_iter().find_map(part).ok_or_else(|| {
        let hint = "biases and whole trained modules are not adapters: merge them into the base with peft";
        Error::input("adapter", format!("tensor `{name}` is neither the A nor the B of a matrix"))
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
    let mut tensors = Vec::with_capacity(3 * file.pairs.len());
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (&id, p) in &file.pairs {
        let module = hf_module(model, id);
        let ordered = |rows: &[f32]| {
            let rows = rows.to_vec();
            reorder(model, id, rows, model.spec.rope.style, peft_order(model))
        };
        let (rank, input, out) = (p.rank, p.inputs(), p.outputs());
        let mut add = |part: &str, shape: Vec<usize>, values: &[f32]| {
            tensors.push((format!("{PREFIX}{module}.{part}"), Dtype::F32, shape, bytes(values)));
        };
        if id.role == Role::Embed {
            add("lora_embedding_A", vec![rank, out], &transposed(&p.b, rank));
            add("lora_embedding_B", vec![input, rank], &transposed(&p.a, input));
            continue;
        }
        add("lora_A.weight", vec![rank, input], &p.a);
        add("lora_B.weight", vec![out, rank], &ordered(&p.b));
        if let Some(m) = &p.magnitude {
            add("lora_magnitude_vector", vec![out], &ordered(m));
        }
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
    let others = |value: &dyn Fn(&HostPair) -> Option<Value>| pattern(file, model, value);
    let layers = common_layers(file, model);
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
        "layers_to_transform": layers,
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
        "target_modules": target_modules(file, model, layers.is_some()),
        "target_parameters": null,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": null,
        "use_dora": file.rescales(),
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

/// What differs from the rule, by module: its short name where all pairs of a role agree, else full paths. PEFT takes a
/// key that matches the end of a module's path.
fn pattern(file: &AdapterFile, model: &Model, value: &dyn Fn(&HostPair) -> Option<Value>) -> Value {
    let mut entries = serde_json::Map::new();
    for role in file.roles() {
        let of_role: Vec<(String, Option<Value>)> = file
            .pairs
            .iter()
            .filter(|(id, _)| id.role == role)
            .map(|(&id, p)| (hf_module(model, id), value(p)))
            .collect();
        match of_role[0].1.clone().filter(|_| of_role.iter().all(|e| e.1 == of_role[0].1)) {
            Some(same) if of_role.len() > 1 => _ = entries.insert(short(&of_role[0].0), same),
            _ => entries.extend(of_role.into_iter().filter_map(|(name, v)| Some((name, v?)))),
        }
    }
    Value::Object(entries)
}

/// The blocks that are adapted, where these are not all, and the same for every map: `layers_to_transform`.
fn common_layers(file: &AdapterFile, model: &Model) -> Option<Vec<usize>> {
    let of = |role| file.pairs.keys().filter(|id| id.role == role).map(|id| id.layer).collect::<Vec<_>>();
    let roles = file.roles();
    let layers = of(*roles.first()?);
    let same = roles.iter().all(|role| !role.is_table() && of(*role) == layers);
    (same && layers.len() < model.spec.layers.len()).then_some(layers)
}

/// Short names where every adapted block has the map, else full paths: PEFT adapts every module whose path ends with
/// a name, in the blocks that `layers_to_transform` lists.
fn target_modules(file: &AdapterFile, model: &Model, listed: bool) -> Vec<String> {
    let blocks = model.spec.layers.len();
    let mut names = Vec::new();
    for role in file.roles() {
        let layers: Vec<usize> = file.pairs.keys().filter(|id| id.role == role).map(|id| id.layer).collect();
        let modules = layers.iter().map(|&layer| hf_module(model, LinearId { layer, role }));
        match listed || role.is_table() || layers.len() == blocks {
            true => names.extend(modules.take(1).map(|m| short(&m))),
            false => names.extend(modules),
        }
    }
    names.sort();
    names
}

/// The last part of a module's path.
fn short(module: &str) -> String {
    module.rsplit('.').next().unwrap_or(module).to_string()
}

/// The most frequent value, the smallest of several.
fn most_common(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts = BTreeMap::new();
    values.for_each(|v| *counts.entry(v).or_insert(0usize) += 1);
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, n)| *n == most).map(|(v, _)| v)
}
