//! Adapter GGUF files and PEFT directories: the numbers, the round trips, and what is refused.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and make files of their own

mod common;

use std::path::{Path, PathBuf};

use common::{TestGguf, adapted, distance, engine, golden, json, logits, sequences};
use planish_base::rng::{Purpose, Stream};
use planish_base::{Error, TypeId};
use planish_compute::call::RopeStyle;
use planish_engine::{AdapterFile, BaseInfo, Binding, Engine, HostPair, Model, Provenance};
use planish_model::{AdapterSet, AdapterSpec, LinearId, ROLES, Role, interleave_rows};
use planish_store::fs::sha256;
use planish_store::gguf::{Gguf, OwnedValue, Writer};
use planish_store::safetensors::SafeTensors;
use serde_json::Value;

const BASE: &str = "tied_gqa";

struct Scene {
    dir: tempfile::TempDir,
    model: Model,
}

impl Scene {
    /// The base as a GGUF file, with q and k permuted.
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let model = TestGguf::golden(BASE).open(&dir.path().join("base.gguf"));
        Scene { dir, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn golden_adapter(&self) -> AdapterFile {
        AdapterFile::read(&golden(BASE).join("peft"), &self.model, Binding::Strict).unwrap()
    }

    fn read(&self, path: &Path) -> Result<AdapterFile, Error> {
        AdapterFile::read(path, &self.model, Binding::Strict)
    }

    /// The golden PEFT directory with a changed configuration and changed names of tensors.
    fn peft(&self, change: impl Fn(&mut Value), rename: impl Fn(&str) -> Option<String>) -> PathBuf {
        let dir = self.path("changed");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let mut config = json(&golden(BASE).join("peft/adapter_config.json"));
        change(&mut config);
        std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
        let from = SafeTensors::open(&golden(BASE).join("peft/adapter_model.safetensors")).unwrap();
        let renamed = from.names().filter_map(|name| {
            let t = from.get(name).unwrap();
            Some((rename(name)?, t.dtype, t.shape.clone(), t.data.to_vec()))
        });
        let tensors: Vec<_> = renamed.collect();
        let to = dir.join("adapter_model.safetensors");
        planish_store::safetensors::write(&to, &tensors, &Default::default()).unwrap();
        dir
    }

    /// The golden adapter's GGUF with changed keys and tensors.
    fn gguf(&self, change: impl Fn(&mut Writer), keep: impl Fn(&str) -> Option<String>) -> PathBuf {
        let (from, to) = (self.path("from.gguf"), self.path("to.gguf"));
        self.golden_adapter().write_gguf(&self.model, &from, &Provenance::default()).unwrap();
        let gguf = Gguf::open(&from).unwrap();
        let mut writer = Writer::new();
        writer.copy_metadata(gguf.metadata(), |_| true);
        change(&mut writer);
        let kept: Vec<_> = gguf.tensors().iter().filter_map(|t| Some((keep(&t.name)?, t))).collect();
        for (name, t) in &kept {
            writer.tensor(name, &t.dims, t.ty).unwrap();
        }
        writer
            .write(&to, |i, sink| {
                sink.write_all(gguf.data(kept[i].1)).unwrap();
                Ok(())
            })
            .unwrap();
        to
    }
}

fn same_name(name: &str) -> Option<String> {
    Some(name.to_string())
}

fn refused(result: Result<AdapterFile, Error>, word: &str) {
    let e = result.map(|_| ()).expect_err(word);
    let text = format!("{e:?}");
    assert!(e.code() == "adapter" && text.contains(word) && e.hint().is_some(), "{word}: {text}");
}

/// Log-probabilities of the golden adapter, computed by peft in Hugging Face order, over a permuted GGUF base and
/// over the Hugging Face directory.
#[test]
fn peft_directory_gives_pefts_numbers() {
    let scene = Scene::new();
    let expected = SafeTensors::open(&golden(BASE).join("expected_peft.safetensors")).unwrap();
    let want = common::floats(expected.get("logprobs").unwrap().data);
    for base in [scene.path("base.gguf"), golden(BASE)] {
        let (mut engine, set) = adapted(&base, &golden(BASE).join("peft"));
        let off = distance(&logprobs(&mut engine, &[&set]), &want);
        assert!(off < 1e-4, "{}: off by {off:e}", base.display());
    }
}

/// The log-softmax of every row of the golden sequences.
fn logprobs(engine: &mut Engine, adapters: &[&AdapterSet]) -> Vec<f32> {
    let vocab = engine.model.spec.vocab;
    let mut out = Vec::new();
    for ids in sequences(BASE) {
        for row in logits(engine, &ids, adapters).chunks(vocab) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|l| f64::from(l - max).exp()).sum();
            out.extend(row.iter().map(|l| l - max - sum.ln() as f32));
        }
    }
    out
}

/// An adapter of rank 4 and alpha 8 on all linear maps, drawn in Hugging Face order and brought to the model's: a row
/// of B has the same numbers whichever file the base is.
fn seeded(model: &Model) -> AdapterFile {
    let (rank, alpha) = (4, 8.0);
    let draw = |tensor: usize, n: usize| -> Vec<f32> {
        let stream = Stream::new(20, Purpose::Init, tensor as u32);
        (0..n as u64).map(|i| (0.2 * stream.normal(i)) as f32).collect()
    };
    let pair = |(i, id): (usize, LinearId)| {
        let (out, input) = model.spec.linear_shape(id);
        let (a, b) = (draw(2 * i, rank * input), draw(2 * i + 1, out * rank));
        let permuted =
            model.spec.rope.style == RopeStyle::Interleaved && matches!(id.role, Role::Q | Role::K);
        let b = if permuted { interleave_rows(&b, out, model.spec.layers[id.layer].heads.width) } else { b };
        (id, HostPair { rank, a, b, scale: alpha / rank as f32, magnitude: None })
    };
    let pairs = model.spec.linears(&ROLES).into_iter().enumerate().map(pair).collect();
    AdapterFile { alpha, rslora: false, pairs, base: BaseInfo::default() }
}

/// A directory that planish writes is loaded by peft itself, which then computes what planish computes with the
/// adapter in memory. With PLANISH_WRITE_GOLDEN set, the directory in golden/peft is written before it is compared.
#[test]
fn peft_computes_the_same_with_a_directory_of_ours() {
    let scene = Scene::new();
    let golden_peft = golden("../peft");
    let bases = [scene.path("base.gguf"), golden(BASE)].map(|path| Model::open(&path).unwrap());
    assert_ne!(bases[0].spec.rope.style, bases[1].spec.rope.style);
    if std::env::var_os("PLANISH_WRITE_GOLDEN").is_some() {
        seeded(&bases[0]).write_peft(&bases[0], &golden_peft.join("adapter")).unwrap();
    }
    let index = json(&golden_peft.join("index.json"));
    let expected = SafeTensors::open(&golden_peft.join("expected.safetensors")).unwrap();
    let want = common::floats(expected.get("logprobs").unwrap().data);
    for (i, model) in bases.into_iter().enumerate() {
        let (name, dir) = (model.path.display().to_string(), scene.path(&format!("ours{i}")));
        let ours = seeded(&model);
        ours.write_peft(&model, &dir).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let bytes = std::fs::read(dir.join(file)).unwrap();
            assert!(
                bytes == std::fs::read(golden_peft.join("adapter").join(file)).unwrap(),
                "{name}: {file}"
            );
            assert_eq!(index["sha256"][format!("peft/adapter/{file}")], sha256(&bytes), "{file}");
        }
        assert_eq!(AdapterFile::read(&dir, &model, Binding::Strict).unwrap().pairs, ours.pairs, "{name}");
        let mut engine = engine(model);
        let set = ours.attach(&mut engine, 1.0).unwrap();
        let off = distance(&logprobs(&mut engine, &[&set]), &want);
        let plain = distance(&logprobs(&mut engine, &[]), &want);
        println!("{name}: off by {off:e}, without the adapter by {plain}");
        assert!(off < 1e-4, "{name}: off by {off:e}");
        assert!(plain > 1.0, "{name}: the adapter changes only {plain}");
    }
}

/// PEFT to GGUF to PEFT gives the very bytes that peft wrote, whichever kind of base is beside it.
#[test]
fn round_trip_is_bit_exact() {
    let scene = Scene::new();
    for (name, model) in [("gguf", &scene.model), ("hf", &Model::open(&golden(BASE)).unwrap())] {
        let peft = golden(BASE).join("peft");
        let first = AdapterFile::read(&peft, model, Binding::Strict).unwrap();
        let gguf = scene.path(&format!("{name}.gguf"));
        first.write_gguf(model, &gguf, &Provenance::default()).unwrap();
        let second = AdapterFile::read(&gguf, model, Binding::Strict).unwrap();
        assert_eq!(first.pairs, second.pairs);
        let dir = scene.path(name);
        second.write_peft(model, &dir).unwrap();
        let bytes = |dir: &Path| std::fs::read(dir.join("adapter_model.safetensors")).unwrap();
        assert!(bytes(&dir) == bytes(&peft), "{name}");
        let (got, want) = (json(&dir.join("adapter_config.json")), json(&peft.join("adapter_config.json")));
        for key in ["r", "lora_alpha", "target_modules", "base_model_name_or_path", "use_rslora", "peft_type"]
        {
            assert_eq!(got[key], want[key], "{key}");
        }
        // A second time, into the directory that is there now.
        second.write_peft(model, &dir).unwrap();
        assert!(bytes(&dir) == bytes(&peft));
    }
    // Both bases give the same adapter file, as llama.cpp would load it beside the converted model.
    let data = |name: &str| {
        let gguf = Gguf::open(&scene.path(name)).unwrap();
        gguf.tensors().iter().map(|t| (t.name.clone(), gguf.data(t).to_vec())).collect::<Vec<_>>()
    };
    assert!(data("gguf.gguf") == data("hf.gguf"));
}

#[test]
fn gguf_says_what_llama_cpp_asks_for() {
    let scene = Scene::new();
    let path = scene.path("a.gguf");
    let keys = vec![("general.dataset.count".to_string(), OwnedValue::U32(0))];
    let provenance = Provenance { name: Some("mine".into()), keys };
    scene.golden_adapter().write_gguf(&scene.model, &path, &provenance).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.require_str("general.type").unwrap(), "adapter");
    assert_eq!(m.require_str("general.architecture").unwrap(), "llama");
    assert_eq!(m.require_str("adapter.type").unwrap(), "lora");
    assert_eq!(m.require_f32("adapter.lora.alpha").unwrap(), 8.0);
    assert_eq!(m.require_str("general.name").unwrap(), "mine");
    assert_eq!(m.require_str("planish.base.sha256").unwrap(), scene.model.sha256());
    assert_eq!(m.u32("general.dataset.count").unwrap(), Some(0));
    assert!(gguf.is_packed());
    assert_eq!(gguf.tensor("blk.1.ffn_down.weight.lora_a").unwrap().dims, [80, 4]);
    assert_eq!(gguf.tensor("blk.1.ffn_down.weight.lora_b").unwrap().dims, [4, 32]);
    assert!(Model::open(&path).is_err());
}

/// Factors that one alpha cannot state are folded into B; PEFT's configuration states each.
#[test]
fn patterns_and_rslora_keep_every_factor() {
    let scene = Scene::new();
    let effect = |file: &AdapterFile, id: LinearId| -> Vec<f32> {
        let p = &file.pairs[&id];
        p.b.iter().map(|b| b * p.scale).collect()
    };
    let q = |layer| LinearId { layer, role: Role::Q };
    let dir = scene.peft(
        |c| {
            c["use_rslora"] = true.into();
            c["alpha_pattern"] = serde_json::json!({"layers.0.self_attn.q_proj": 3});
        },
        same_name,
    );
    let first = scene.read(&dir).unwrap();
    assert_eq!((first.pairs[&q(0)].scale, first.pairs[&q(1)].scale), (1.5, 4.0));
    first.write_gguf(&scene.model, &scene.path("a.gguf"), &Provenance::default()).unwrap();
    let second = scene.read(&scene.path("a.gguf")).unwrap();
    for id in [q(0), q(1)] {
        assert!(distance(&effect(&first, id), &effect(&second, id)) < 1e-6);
    }
    assert_eq!((second.alpha, second.rslora), (16.0, true));
    first.write_peft(&scene.model, &scene.path("peft")).unwrap();
    let config = json(&scene.path("peft/adapter_config.json"));
    assert_eq!((&config["lora_alpha"], &config["use_rslora"]), (&8.into(), &true.into()));
    assert_eq!(config["alpha_pattern"], serde_json::json!({"model.layers.0.self_attn.q_proj": 3}));
    assert_eq!(scene.read(&scene.path("peft")).unwrap().pairs, first.pairs);
}

#[test]
fn a_trained_set_comes_back_bit_for_bit() {
    let scene = Scene::new();
    let mut engine = engine(Model::open(&scene.path("base.gguf")).unwrap());
    for rslora in [false, true] {
        let (rank, alpha) = (3, 10.0);
        let spec = AdapterSpec {
            rank,
            alpha,
            rslora,
            targets: vec![Role::Q, Role::Down],
            dropout: 0.0,
            ..AdapterSpec::default()
        };
        let model_spec = engine.model.spec.clone();
        let set = AdapterSet::init(&mut engine.backend, &model_spec, &engine.params, &spec, 7).unwrap();
        let file = AdapterFile::from_set(&engine, &set, &spec);
        file.write_gguf(&engine.model, &scene.path("t.gguf"), &Provenance::default()).unwrap();
        file.write_peft(&engine.model, &scene.path(if rslora { "rs" } else { "plain" })).unwrap();
        let back = scene.read(&scene.path("t.gguf")).unwrap();
        assert_eq!(back.roles(), [Role::Q, Role::Down]);
        for (id, p) in &file.pairs {
            let q = &back.pairs[id];
            assert_eq!((p.rank, &p.a, &p.b), (q.rank, &q.a, &q.b));
            assert!((p.scale - q.scale).abs() < 1e-6 * p.scale);
        }
        back.upload(&mut engine, &set).unwrap();
        let other = AdapterSpec { rank: 4, ..spec.clone() };
        let other = AdapterSet::init(&mut engine.backend, &model_spec, &engine.params, &other, 7).unwrap();
        assert_eq!(back.upload(&mut engine, &other).unwrap_err().code(), "adapter");
        let config = json(&scene.path(if rslora { "rs" } else { "plain" }).join("adapter_config.json"));
        assert_eq!((&config["lora_alpha"], &config["r"]), (&10.into(), &3.into()));
    }
}

#[test]
fn half_and_eight_bit_tensors_are_read() {
    let scene = Scene::new();
    let model = &scene.model;
    for ty in [TypeId::F16, TypeId::BF16, TypeId::Q8_0] {
        let quant = planish_compute::quant::Quant::of(ty).unwrap();
        let mut writer = Writer::new();
        writer.set("general.type", "adapter".into());
        writer.set("general.architecture", "llama".into());
        writer.set("adapter.type", "lora".into());
        writer.set("adapter.lora.alpha", OwnedValue::F32(0.0));
        writer.tensor("blk.0.attn_q.weight.lora_a", &[32, 32], ty).unwrap();
        writer.tensor("blk.0.attn_q.weight.lora_b", &[32, 32], ty).unwrap();
        let values: Vec<f32> = (0..1024).map(|i| i as f32 % 7.0 - 3.0).collect();
        let mut bytes = vec![0; 1024 / quant.block() * quant.block_bytes()];
        quant.encode.unwrap()(&values, &mut bytes);
        let path = scene.path("half.gguf");
        writer
            .write(&path, |_, sink| {
                sink.write_all(&bytes).unwrap();
                Ok(())
            })
            .unwrap();
        let file = AdapterFile::read(&path, model, Binding::Strict).unwrap();
        let p = &file.pairs[&LinearId { layer: 0, role: Role::Q }];
        // An alpha of 0 means a factor of 1.
        assert_eq!((p.rank, p.scale), (32, 1.0));
        assert!(distance(&p.a, &values) < 0.02);
    }
}

#[test]
fn old_names_are_read() {
    let scene = Scene::new();
    let dir = scene.peft(|_| (), |n| Some(n.replace("lora_A.weight", "lora_A.default.weight")));
    assert_eq!(scene.read(&dir).unwrap().pairs, scene.golden_adapter().pairs);
}

#[test]
fn adapters_of_another_base_are_refused() {
    let scene = Scene::new();
    let path = scene.gguf(|w| w.set("general.architecture", "qwen2".into()), same_name);
    refused(scene.read(&path), "qwen2");
    let path = scene.gguf(|w| w.set("planish.base.sha256", "0123".into()), same_name);
    refused(scene.read(&path), "SHA-256");
    assert!(AdapterFile::read(&path, &scene.model, Binding::Loose).is_ok());
    let other = TestGguf::golden("untied_mha").open(&scene.path("other.gguf"));
    refused(AdapterFile::read(&golden(BASE).join("peft"), &other, Binding::Loose), "another base");
    let path = scene.gguf(|_| (), |n| Some(n.replace("blk.1.", "blk.7.")));
    refused(scene.read(&path), "blk.7.");
}

#[test]
fn incomplete_and_foreign_adapter_files_are_refused() {
    let scene = Scene::new();
    let path = scene.gguf(|_| (), |n| (n != "blk.0.attn_q.weight.lora_b").then(|| n.to_string()));
    refused(scene.read(&path), "lora_b");
    let path = scene.gguf(|_| (), |n| Some(n.replace("blk.0.attn_q.weight.lora", "blk.0.attn_q.bias.lora")));
    refused(scene.read(&path), "bias");
    // A table's pair is looked up, so its A lies otherwise; and another shape belongs to another base.
    let path = scene.gguf(|_| (), |n| Some(n.replace("blk.0.attn_q", "token_embd")));
    refused(scene.read(&path), "vocabulary");
    let path = scene.gguf(|_| (), |n| Some(n.replace("blk.0.attn_q", "output")));
    refused(scene.read(&path), "96 x 32");
    let path = scene.gguf(|_| (), |n| Some(n.replace("blk.0.attn_q", "blk.0.attn_norm")));
    refused(scene.read(&path), "norm");
    let path = scene.gguf(|w| w.set("adapter.type", "other".into()), same_name);
    refused(scene.read(&path), "other");
    refused(scene.read(&scene.path("base.gguf")), "model");
    let path = scene.gguf(|_| (), same_name);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    assert_eq!(scene.read(&path).unwrap_err().code(), "tensor exceeds file");
    std::fs::write(&path, &bytes[..100]).unwrap();
    assert!(scene.read(&path).is_err());
}

#[test]
fn peft_directories_that_say_more_are_refused() {
    let scene = Scene::new();
    refused(scene.read(&scene.peft(|c| c["use_dora"] = true.into(), same_name)), "has no magnitude");
    refused(scene.read(&scene.peft(|c| c["r"] = 5.into(), same_name)), "rank 4");
    let no_b = |n: &str| (!n.ends_with("layers.0.mlp.up_proj.lora_B.weight")).then(|| n.to_string());
    refused(scene.read(&scene.peft(|_| (), no_b)), "lora_B");
    let head = |n: &str| Some(n.replace("model.layers.0.mlp.up_proj", "lm_head"));
    refused(scene.read(&scene.peft(|_| (), head)), "lm_head");
    let dora =
        |n: &str| Some(n.replace("0.mlp.up_proj.lora_B.weight", "0.mlp.up_proj.lora_magnitude_vector"));
    refused(scene.read(&scene.peft(|_| (), dora)), "lora_B");
    let dir = scene.peft(|_| (), same_name);
    std::fs::rename(dir.join("adapter_model.safetensors"), dir.join("adapter_model.bin")).unwrap();
    refused(scene.read(&dir), "pickle");
    std::fs::remove_file(dir.join("adapter_config.json")).unwrap();
    refused(scene.read(&dir), "adapter_config.json");
    assert_eq!(scene.read(&scene.path("nothing")).unwrap_err().code(), "not found");
}

#[test]
fn nothing_is_left_where_writing_fails() {
    let scene = Scene::new();
    let file = scene.golden_adapter();
    std::fs::write(scene.path("file"), "kept").unwrap();
    let below = scene.path("file").join("out");
    assert!(file.write_gguf(&scene.model, &below, &Provenance::default()).is_err());
    assert!(file.write_peft(&scene.model, &below).is_err());
    let mut bad = file.clone();
    bad.pairs.values_mut().next().unwrap().b[3] = f32::NAN;
    let out = scene.path("out.gguf");
    let e = bad.write_gguf(&scene.model, &out, &Provenance::default()).unwrap_err();
    assert_eq!(e.code(), "adapter");
    assert!(bad.write_peft(&scene.model, &scene.path("out")).is_err());
    let mut names: Vec<_> =
        std::fs::read_dir(scene.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["base.gguf", "file"]);
    assert_eq!(std::fs::read(scene.path("file")).unwrap(), b"kept");
    assert_eq!(file.roles(), ROLES);
}
