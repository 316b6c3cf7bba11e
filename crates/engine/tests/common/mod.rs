//! What the tests share: tiny GGUF models made from golden/llama, and ways to compute with them.
// Tests fail by panicking, and make files of their own; not every test uses everything.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};

use planish_base::TypeId;
use planish_compute::call::Product;
use planish_compute::quant::Quant;
use planish_compute::{Backend, Isa};
use planish_engine::{AdapterFile, Binding, Engine, EngineOptions, Model, Precision};
use planish_model::{AdapterSet, Arch, Pass, Ragged, Trainable, halve_rows, interleave_rows};
use planish_store::gguf::{OwnedValue, Writer};
use planish_store::safetensors::SafeTensors;
use planish_tape::{Mode, Tape};
use serde_json::Value;

pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/llama").join(name)
}

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// A GGUF file under construction: metadata and tensors that a test may still change.
pub struct TestGguf {
    pub writer: Writer,
    pub tensors: Vec<(String, Vec<u64>, TypeId, Vec<u8>)>,
}

impl TestGguf {
    /// A golden model as llama.cpp's converter writes it: q and k permuted where the family is, the tokenizer below.
    pub fn golden(name: &str) -> TestGguf {
        let dir = golden(name);
        let config = json(&dir.join("config.json"));
        let arch = Arch::of_config(&config).unwrap().name;
        let mut file = TestGguf { writer: Writer::new(), tensors: Vec::new() };
        let w = &mut file.writer;
        let count = |key: &str| OwnedValue::U32(config[key].as_u64().unwrap() as u32);
        w.set("general.architecture", arch.into());
        w.set("general.type", "model".into());
        w.set("general.name", name.into());
        w.set("general.file_type", OwnedValue::U32(0));
        for (key, hf) in [
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("block_count", "num_hidden_layers"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("attention.value_length", "head_dim"),
            ("rope.dimension_count", "head_dim"),
            ("vocab_size", "vocab_size"),
        ] {
            w.set(&format!("{arch}.{key}"), count(hf));
        }
        w.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), OwnedValue::F32(1e-5));
        w.set(&format!("{arch}.rope.freq_base"), OwnedValue::F32(10_000.0));
        w.set("some.unknown.key", OwnedValue::Strings(vec!["kept".into()]));
        file.set_tokenizer();
        file.add_tensors(&dir, &config);
        file
    }

    fn set_tokenizer(&mut self) {
        let (tokens, kinds) = vocabulary();
        let w = &mut self.writer;
        w.set("tokenizer.ggml.model", "gpt2".into());
        w.set("tokenizer.ggml.pre", "gpt-2".into());
        w.set("tokenizer.ggml.tokens", OwnedValue::Strings(tokens));
        w.set("tokenizer.ggml.token_type", OwnedValue::I32s(kinds));
        w.set("tokenizer.ggml.merges", OwnedValue::Strings(vec!["t h".into()]));
        w.set("tokenizer.ggml.bos_token_id", OwnedValue::U32(1));
        w.set("tokenizer.ggml.eos_token_id", OwnedValue::U32(2));
        w.set("tokenizer.chat_template", CHATML.into());
    }

    fn add_tensors(&mut self, dir: &Path, config: &Value) {
        let arch = Arch::of_config(config).unwrap();
        let source = SafeTensors::open(&dir.join("model.safetensors")).unwrap();
        let width = config["head_dim"].as_u64().unwrap() as usize;
        for name in source.names() {
            let t = source.get(name).unwrap();
            let gguf = arch.gguf_name(name).unwrap();
            let turned = gguf.contains("attn_q") || gguf.contains("attn_k");
            let data = match arch.permuted && turned {
                true => interleave_rows(&floats(t.data), t.shape[0], width)
                    .iter()
                    .flat_map(|v| v.to_le_bytes())
                    .collect(),
                false => t.data.to_vec(),
            };
            let dims = t.shape.iter().rev().map(|d| *d as u64).collect();
            self.tensors.push((gguf, dims, TypeId::F32, data));
        }
    }

    /// Encodes every matrix whose rows are whole blocks.
    pub fn quantised(mut self, ty: TypeId) -> TestGguf {
        let quant = Quant::of(ty).unwrap();
        for (_, dims, t, data) in &mut self.tensors {
            if dims.len() == 2 && dims[0].is_multiple_of(quant.block() as u64) {
                let values = floats(data);
                let mut bytes = vec![0; values.len() / quant.block() * quant.block_bytes()];
                quant.encode.unwrap()(&values, &mut bytes);
                (*t, *data) = (ty, bytes);
            }
        }
        if quant.block() > 1 {
            self.writer.set("general.quantization_version", OwnedValue::U32(2));
        }
        self
    }

    /// The same model as toy writes it: rows of q and k as Hugging Face has them, and projections head by head, their
    /// heads one after the other or, scattered, from last to first.
    pub fn toy(mut self, width: usize, scattered: bool) -> TestGguf {
        self.writer.set("toy.ggml_native", OwnedValue::Bool(true));
        self.writer.set("toy.checkpoint_format", "toy-from-scratch/v1".into());
        let mut tensors = Vec::new();
        for (name, dims, ty, data) in std::mem::take(&mut self.tensors) {
            let projection = ["attn_q.", "attn_k.", "attn_v."].iter().any(|p| name.contains(p));
            if !projection {
                tensors.push((name, dims, ty, data));
                continue;
            }
            let rows = *dims.last().unwrap() as usize;
            let data = if name.contains("attn_v") { data } else { halve_rows(&data, rows, width) };
            let (stem, suffix) = name.rsplit_once('.').unwrap();
            let head = |(i, part): (usize, &[u8])| {
                let mut dims = dims.clone();
                *dims.last_mut().unwrap() = width as u64;
                (format!("{stem}.head_{i}.{suffix}"), dims, ty, part.to_vec())
            };
            let heads = data.chunks(data.len() / rows * width).enumerate().map(head);
            match scattered {
                true => tensors.extend(heads.rev()),
                false => tensors.extend(heads),
            }
        }
        self.tensors = tensors;
        self
    }

    pub fn set(mut self, key: &str, value: OwnedValue) -> TestGguf {
        self.writer.set(key, value);
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut (String, Vec<u64>, TypeId, Vec<u8>) {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }

    pub fn write(&self, path: &Path) {
        let mut writer = self.writer.clone();
        for (name, dims, ty, _) in &self.tensors {
            writer.tensor(name, dims, *ty).unwrap();
        }
        writer
            .write(path, |i, sink| {
                sink.write_all(&self.tensors[i].3).unwrap();
                Ok(())
            })
            .unwrap();
    }

    pub fn open(&self, path: &Path) -> Model {
        self.write(path);
        Model::open(path).unwrap()
    }
}

/// 96 tokens: control tokens, blank, line break, letters, digits, most punctuation, and `th`.
pub fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let control = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"];
    let mut tokens: Vec<String> = control.iter().map(|t| t.to_string()).collect();
    let mut kinds = vec![3; tokens.len()];
    kinds[0] = 2;
    tokens.extend(["\u{120}", "\u{10a}", "th"].map(str::to_string));
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    tokens.extend(letters.chain(('!'..='~').filter(|c| c.is_ascii_punctuation())).map(|c| c.to_string()));
    tokens.truncate(96);
    kinds.resize(tokens.len(), 1);
    (tokens, kinds)
}

pub fn engine(model: Model) -> Engine {
    let options = EngineOptions {
        threads: 1,
        isa: Isa::detect(),
        context: 64,
        tokens: 64,
        trainable: Trainable::Nothing,
        recompute: false,
        precision: Precision::F32,
    };
    Engine::new(model, options).unwrap()
}

/// An engine and an adapter on it.
pub fn adapted(base: &Path, adapter: &Path) -> (Engine, AdapterSet) {
    let model = Model::open(base).unwrap();
    let file = AdapterFile::read(adapter, &model, Binding::Strict).unwrap();
    let mut engine = engine(model);
    let set = file.attach(&mut engine, 1.0).unwrap();
    (engine, set)
}

/// Logits of every row of one sequence.
pub fn logits(engine: &mut Engine, ids: &[u32], adapters: &[&AdapterSet]) -> Vec<f32> {
    let n = ids.len() as u32;
    let positions: Vec<u32> = (0..n).collect();
    let batch = Ragged {
        ids,
        positions: &positions,
        segments: &[[0, n, 0, 0]],
        rows: &positions,
        targets: &positions,
    };
    let (views, targets) = engine.inputs.views(&batch);
    engine.inputs.fill(&mut engine.backend, &batch, 1.0);
    let mut tape = Tape::new(Mode::Infer, Product::Packed);
    let mut pass = Pass::new(&mut tape, views, &engine.model.spec, &engine.params, adapters, None);
    let hidden = pass.hidden();
    let out = pass.logits(hidden, targets.rows);
    let out = tape.view(out);
    let program = tape.finish();
    engine.backend.reserve(program.arena_bytes()).unwrap();
    engine.backend.run(&program);
    engine.backend.download_f32(&program.view(&out))
}

/// The token sequences of a golden model.
pub fn sequences(name: &str) -> Vec<Vec<u32>> {
    let numbers = json(&golden(name).join("expected.json"));
    let ids = |s: &Value| s.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    numbers["ids"].as_array().unwrap().iter().map(ids).collect()
}

/// The largest difference of two lists.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
