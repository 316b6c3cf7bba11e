//! Logits, losses and every gradient of small llamas against PyTorch in double precision (golden/llama).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test reads, fails and reports

use std::path::{Path, PathBuf};

use planish_compute::call::Product;
use planish_compute::{Backend, CpuBackend, Isa};
use planish_model::{AdapterSet, Arch, Inputs, PairValues, Params, Pass, Ragged, Spec, Trainable, Weights};
use planish_store::safetensors::SafeTensors;
use planish_tape::{Mode, Saved, Tape};
use serde_json::Value;

struct Model {
    backend: CpuBackend,
    arch: &'static Arch,
    spec: Spec,
    params: Params,
    inputs: Inputs,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/llama").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Model {
    fn open(dir: &Path, trainable: Trainable) -> Model {
        let config = json(&dir.join("config.json"));
        let arch = Arch::of_config(&config).unwrap();
        let spec = (arch.hf_spec)(&config).unwrap();
        let mut weights = Weights::default();
        weights.add_safetensors(arch, &SafeTensors::open(&dir.join("model.safetensors")).unwrap()).unwrap();
        let mut backend = CpuBackend::new(Isa::detect(), 2).unwrap();
        let params = Params::load(&mut backend, arch, &spec, &weights, &trainable, 64).unwrap();
        let inputs = Inputs::new(&mut backend, 256).unwrap();
        Model { backend, arch, spec, params, inputs }
    }

    fn pass(&mut self, batch: &Batch, adapters: &[&AdapterSet], mode: Mode, saved: Saved) -> Vec<f32> {
        let ragged = batch.ragged();
        let (views, targets) = self.inputs.views(&ragged);
        self.inputs.fill(&mut self.backend, &ragged, 1.0 / batch.rows.len() as f32);
        let mut tape = Tape::new(mode, Product::Packed).with_saved(saved);
        let mut pass = Pass::new(&mut tape, views, &self.spec, &self.params, adapters, None);
        let hidden = pass.hidden();
        let out = match mode {
            Mode::Infer => pass.logits(hidden, targets.rows),
            Mode::Train => pass.loss(hidden, &targets),
        };
        let out = tape.view(out);
        tape.backward();
        let program = tape.finish();
        self.backend.reserve(program.arena_bytes()).unwrap();
        self.backend.run(&program);
        self.backend.download_f32(&program.view(&out))
    }
}

/// All sequences side by side, each row but a sequence's last trained on the next token.
struct Batch {
    ids: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<[u32; 4]>,
    rows: Vec<u32>,
    targets: Vec<u32>,
}

impl Batch {
    fn of(ids: &Value, every_row: bool) -> Batch {
        let mut b = Batch { ids: vec![], positions: vec![], segments: vec![], rows: vec![], targets: vec![] };
        for s in ids.as_array().unwrap() {
            let s: Vec<u32> = s.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            let first = b.ids.len() as u32;
            b.segments.push([first, s.len() as u32, 0, 0]);
            for (i, id) in s.iter().enumerate() {
                b.ids.push(*id);
                b.positions.push(i as u32);
                let next = s.get(i + 1);
                if every_row || next.is_some() {
                    b.rows.push(first + i as u32);
                    b.targets.push(next.copied().unwrap_or(0));
                }
            }
        }
        b
    }

    fn ragged(&self) -> Ragged<'_> {
        Ragged {
            ids: &self.ids,
            positions: &self.positions,
            segments: &self.segments,
            rows: &self.rows,
            targets: &self.targets,
        }
    }
}

fn doubles(tensors: &SafeTensors, name: &str) -> Vec<f64> {
    let t = tensors.get(name).unwrap_or_else(|| panic!("{name} is not in the golden file"));
    if t.data.len() == t.shape.iter().product::<usize>() * 4 {
        return t
            .data
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
            .collect();
    }
    t.data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn assert_close(what: &str, got: &[f32], want: &[f64], relative_to_norm: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let norm = want.iter().map(|w| w * w).sum::<f64>().sqrt();
    let error = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
    assert!(error <= relative_to_norm * norm, "{what}: off by {:.2e} of its norm", error / norm);
}

fn check_full(dir: &Path, logits_name: &str) {
    for saved in [Saved::Kept, Saved::Recomputed] {
        check_saved(dir, logits_name, saved);
    }
}

fn check_saved(dir: &Path, logits_name: &str, saved: Saved) {
    let expected = SafeTensors::open(&dir.join("expected.safetensors"))
        .or_else(|_| SafeTensors::open(&dir.join("expected_f64.safetensors")))
        .unwrap();
    let numbers = json(&dir.join("expected.json"));
    let mut model = Model::open(dir, Trainable::Everything);
    let logits = model.pass(&Batch::of(&numbers["ids"], true), &[], Mode::Infer, saved);
    assert_close("logits", &logits, &doubles(&expected, logits_name), 1e-6);
    let losses = model.pass(&Batch::of(&numbers["ids"], false), &[], Mode::Train, saved);
    let mean = losses.iter().map(|l| f64::from(*l)).sum::<f64>() / losses.len() as f64;
    let want = numbers["mean_loss"].as_f64().or_else(|| numbers["mean_ce_f64"].as_f64()).unwrap();
    assert!((mean - want).abs() <= 1e-6, "loss {mean}, want {want}");
    let named: Vec<_> = model.params.trainable().cloned().collect();
    assert!(named.len() > 10);
    for n in named {
        let hf = model.arch.hf_name(&n.name).unwrap();
        let got = model.backend.download_f32(&n.param.grad.unwrap());
        assert_close(&hf, &got, &doubles(&expected, &format!("grad.{hf}")), 1e-5);
    }
}

#[test]
fn tied_grouped_heads() {
    check_full(&golden("tied_gqa"), "logits");
}

#[test]
fn untied_multi_head() {
    check_full(&golden("untied_mha"), "logits");
}

#[test]
fn llama3_rope_scaling() {
    check_full(&golden("llama3_rope"), "logits");
}

#[test]
fn qwen3_norms_queries_and_keys() {
    check_full(&golden("qwen3"), "logits");
}

#[test]
fn gelu_and_biases() {
    check_full(&golden("gelu_bias"), "logits");
}

/// A PEFT directory as `peft` writes it: log-probabilities of base and adapter, and every adapter gradient.
#[test]
fn adapter_gradients() {
    let dir = golden("tied_gqa");
    let numbers = json(&dir.join("expected.json"));
    let expected = SafeTensors::open(&dir.join("expected_peft.safetensors")).unwrap();
    let adapter = SafeTensors::open(&dir.join("peft/adapter_model.safetensors")).unwrap();
    let mut model = Model::open(&dir, Trainable::Nothing);
    let mut set = AdapterSet::default();
    let ids = model.spec.linears(&planish_model::ROLES);
    let peft_name = |model: &Model, id| {
        format!(
            "base_model.model.{}",
            model.arch.hf_name(&format!("{}.weight", model.arch.linear_name(id))).unwrap()
        )
    };
    for &id in &ids {
        let stem = peft_name(&model, id);
        let part = |s: &str| -> Vec<f32> {
            let name = stem.replace(".weight", &format!(".{s}.weight"));
            doubles(&adapter, &name).into_iter().map(|v| v as f32).collect()
        };
        let (a, b) = (part("lora_A"), part("lora_B"));
        let values = PairValues { rank: 4, a: &a, b: &b, scale: 2.0, magnitude: None };
        set.insert(&mut model.backend, id, &values, true).unwrap();
    }
    let logits = model.pass(&Batch::of(&numbers["ids"], true), &[&set], Mode::Infer, Saved::Kept);
    let want = doubles(&expected, "logprobs_f64");
    let mut worst = 0f64;
    for (got, want) in logits.chunks(model.spec.vocab).zip(want.chunks(model.spec.vocab)) {
        let max = got.iter().copied().fold(f32::MIN, f32::max);
        let lse = f64::from(max) + got.iter().map(|g| f64::from(g - max).exp()).sum::<f64>().ln();
        let errors = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - lse - w).abs());
        worst = errors.fold(worst, f64::max);
    }
    assert!(worst <= 1e-4, "log-probabilities are off by {worst:e}");
    model.pass(&Batch::of(&numbers["ids"], false), &[&set], Mode::Train, Saved::Kept);
    for &id in &ids {
        let pair = set.of(id).unwrap();
        let stem = peft_name(&model, id);
        for (s, p) in [("lora_A", pair.a), ("lora_B", pair.b)] {
            let name = stem.replace(".weight", &format!(".{s}.weight"));
            let got = model.backend.download_f32(&p.grad.unwrap());
            assert_close(&name, &got, &doubles(&expected, &format!("grad.{name}")), 1e-5);
        }
    }
}

/// The two models of ../shared (or PLANISH_SHARED), where they are at hand.
#[test]
fn shared_tiny_models() {
    let Some(dir) = planish_testkit::files::needed("PLANISH_SHARED", "golden/smollm2/tiny") else { return };
    for name in ["tied_gqa", "untied_mha"] {
        check_full(&dir.join(name), "logits");
    }
}
