//! Writes a `tune` run as another trainer can repeat it: examples, order, learning rates, initial A matrices. This is
//! what golden/tune/peft_run.py reads.
//!
//! ```text
//! cargo run --release -p planish-train --example export_run -- MODEL DATA STEPS BATCH OUT_DIR
//! ```
#![allow(clippy::disallowed_methods)] // an example writes its own files

use std::collections::BTreeMap;
use std::path::PathBuf;

use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::{AdapterSet, Trainable};
use planish_store::safetensors::{Dtype, write};
use planish_text::{Example, LoadOptions, load, split};
use planish_train::schedule::of;
use planish_train::{Order, RunConfig};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, data, steps, batch_size, out] = &args[..] else {
        return Err("usage: export_run MODEL DATA STEPS BATCH OUT_DIR".into());
    };
    let (steps, batch_size) = (steps.parse::<usize>()?, batch_size.parse::<usize>()?);
    let out = PathBuf::from(out);
    let config = RunConfig { steps: Some(steps), batch_size, ..RunConfig::default() };
    let model = Model::open(&PathBuf::from(model))?;
    let options = LoadOptions { context: model.spec.context, ..LoadOptions::default() };
    let dataset = load(&[PathBuf::from(data)], model.tokenizer.as_ref(), model.template.as_ref(), &options)?;
    let n = dataset.examples.len();
    let (train, eval) = split(config.seed, n, config.eval_split.count(n));
    let order = Order { seed: config.seed, examples: train.len(), batch_size };
    let shape = config.shape(steps);
    let schedule = of(&config.schedule)?;
    let encode = |i: &usize| labelled(&dataset.examples[*i]);
    let plan = json!({
        "rank": config.rank, "alpha": config.alpha, "betas": config.optim_settings()?.betas, "eps": config.eps,
        "targets": config.adapter()?.targets.iter().map(|r| r.name()).collect::<Vec<_>>(),
        "weight_decay": config.weight_decay, "clip": config.clip,
        "lr": (0..steps).map(|s| schedule.rate(&shape, s)).collect::<Vec<_>>(),
        "steps": (0..steps).map(|s| order.step(s)).collect::<Vec<_>>(),
        "train": train.iter().map(encode).collect::<Vec<_>>(),
        "eval": eval.iter().map(encode).collect::<Vec<_>>(),
    });
    std::fs::create_dir_all(&out)?;
    std::fs::write(out.join("plan.json"), plan.to_string())?;
    write_a_init(model, &config, &out.join("a_init.safetensors"))
}

/// Token ids, and labels aligned with them, -100 where a token is not trained.
fn labelled(e: &Example) -> serde_json::Value {
    let labels = e.ids.iter().zip(&e.trained).map(|(id, t)| if *t { i64::from(*id) } else { -100 });
    json!({"input_ids": e.ids, "labels": labels.collect::<Vec<_>>()})
}

fn write_a_init(
    model: Model,
    config: &RunConfig,
    path: &std::path::Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let options = EngineOptions {
        threads: 1,
        isa: Isa::detect(),
        context: 1,
        tokens: 1,
        trainable: Trainable::Nothing,
        recompute: false,
        precision: Precision::F32,
    };
    let mut engine = Engine::new(model, options)?;
    let (model, adapter) = (engine.model.clone(), config.adapter()?);
    let set = AdapterSet::init(&mut engine.backend, &model.spec, &engine.params, &adapter, config.seed)?;
    let mut tensors = Vec::new();
    for (id, pair) in set.pairs() {
        let hf = model.arch.hf_name(&format!("{}.weight", model.arch.linear_name(id))).ok_or("a name")?;
        let name = format!("base_model.model.{}", hf.replace(".weight", ".lora_A.weight"));
        let bytes = engine.backend.download_f32(&pair.a.view).iter().flat_map(|v| v.to_le_bytes()).collect();
        tensors.push((name, Dtype::F32, vec![pair.a.view.rows, pair.a.view.cols], bytes));
    }
    Ok(write(path, &tensors, &BTreeMap::new())?)
}
