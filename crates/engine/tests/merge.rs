//! Merged files: the numbers, the types, the metadata, and what is refused.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and make files of their own

mod common;

use std::path::PathBuf;

use common::{CHATML, TestGguf, adapted, distance, engine, floats, golden, logits, sequences};
use planish_base::TypeId;
use planish_compute::quant::Quant;
use planish_engine::{AdapterFile, Binding, MergeReport, MergeType, Model, merge};
use planish_store::gguf::{Gguf, OwnedValue};

const BASE: &str = "tied_gqa";

struct Scene {
    dir: tempfile::TempDir,
    model: Model,
    adapter: AdapterFile,
}

impl Scene {
    fn new(base: TestGguf) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let model = base.open(&dir.path().join("base.gguf"));
        let adapter = AdapterFile::read(&golden(BASE).join("peft"), &model, Binding::Strict).unwrap();
        Scene { dir, model, adapter }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn merge(&self, ty: MergeType) -> (MergeReport, Gguf) {
        let out = self.path("merged.gguf");
        let report = merge(&self.model, &[(self.adapter.clone(), 1.0)], &out, ty).unwrap();
        let gguf = Gguf::open(&out).unwrap();
        assert!(gguf.is_packed());
        assert_eq!(gguf.bytes().len() as u64, report.bytes);
        (report, gguf)
    }

    /// Logits of base and adapter, and of the merged file.
    fn logits(&self) -> [Vec<f32>; 2] {
        let ids = &sequences(BASE)[0];
        let (mut base, set) = adapted(&self.path("base.gguf"), &golden(BASE).join("peft"));
        let mut merged = engine(Model::open(&self.path("merged.gguf")).unwrap());
        [logits(&mut base, ids, &[&set]), logits(&mut merged, ids, &[])]
    }

    /// The largest difference between the two.
    fn error(&self) -> f32 {
        let [want, got] = self.logits();
        distance(&want, &got)
    }

    /// The norm of the difference, relative to that of the logits.
    fn relative_error(&self) -> f32 {
        let [want, got] = self.logits();
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
        norm(&mut want.iter().zip(&got).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
    }
}

#[test]
fn merged_f32_computes_what_base_and_adapter_do() {
    let scene = Scene::new(TestGguf::golden(BASE));
    let (report, gguf) = scene.merge(MergeType::Same);
    assert!(scene.error() < 1e-5, "off by {:e}", scene.error());
    assert_eq!((report.touched.len(), report.file_type, report.fallbacks.len()), (14, Some(0), 0));
    assert!(report.touched.iter().all(|t| t.change > 1e-3), "{report:?}");
    let from = scene.model.gguf.as_ref().unwrap();
    let pairs = |g: &Gguf| g.metadata().iter().map(|(k, v)| format!("{k} {v:?}")).collect::<Vec<_>>();
    assert_eq!(pairs(from), pairs(&gguf));
    for t in from.tensors() {
        let touched = report.touched.iter().any(|x| x.name == t.name);
        assert_eq!(from.data(t) != gguf.data(gguf.tensor(&t.name).unwrap()), touched, "{}", t.name);
    }
    let again = scene.path("again.gguf");
    merge(&scene.model, &[(scene.adapter.clone(), 1.0)], &again, MergeType::Same).unwrap();
    assert!(std::fs::read(again).unwrap() == gguf.bytes().to_vec());
}

/// A factor of -1 after one of 1 undoes it, up to rounding.
#[test]
fn adapters_add_up() {
    let scene = Scene::new(TestGguf::golden(BASE));
    let both = [(scene.adapter.clone(), 0.5), (scene.adapter.clone(), 0.5)];
    merge(&scene.model, &both, &scene.path("merged.gguf"), MergeType::Same).unwrap();
    assert!(scene.error() < 1e-5);
    let none = [(scene.adapter.clone(), 1.0), (scene.adapter.clone(), -1.0)];
    let report = merge(&scene.model, &none, &scene.path("merged.gguf"), MergeType::Same).unwrap();
    assert!(report.touched.iter().all(|t| t.change < 1e-5), "{report:?}");
}

#[test]
fn other_types_load_again() {
    let scene = Scene::new(TestGguf::golden(BASE));
    let (_, exact) = scene.merge(MergeType::As(TypeId::F32));
    for (ty, number, tolerance) in
        [(TypeId::F32, 0, 1e-6), (TypeId::F16, 1, 2e-3), (TypeId::BF16, 32, 2e-2), (TypeId::Q8_0, 7, 6e-2)]
    {
        let (report, gguf) = scene.merge(MergeType::As(ty));
        let error = scene.relative_error();
        assert!(error < tolerance, "{}: off by {error:e}", ty.name());
        let m = gguf.metadata();
        assert_eq!(m.u32("general.file_type").unwrap(), Some(number));
        assert_eq!(report.file_type, Some(number));
        assert_eq!(m.str("tokenizer.chat_template").unwrap(), Some(CHATML));
        for t in gguf.tensors() {
            let want = match (t.dims.len(), ty, t.dims[0]) {
                (1, ..) => TypeId::F32,
                // 80 columns are not whole blocks of 32.
                (_, TypeId::Q8_0, 80) => TypeId::F16,
                _ => ty,
            };
            assert_eq!(t.ty, want, "{}", t.name);
            // What was rounded is the sum, once.
            let values = floats(exact.data(exact.tensor(&t.name).unwrap()));
            let mut bytes = vec![0; t.bytes as usize];
            Quant::of(t.ty).unwrap().encode.unwrap()(&values, &mut bytes);
            assert!(bytes == gguf.data(t), "{}", t.name);
        }
        let quantised = ty == TypeId::Q8_0;
        assert_eq!(report.fallbacks.len(), if quantised { 2 } else { 0 });
        assert_eq!(m.u32("general.quantization_version").unwrap(), quantised.then_some(2));
    }
}

#[test]
fn same_keeps_the_types_of_the_base() {
    for ty in [TypeId::F16, TypeId::BF16, TypeId::Q8_0] {
        let scene = Scene::new(TestGguf::golden(BASE).quantised(ty));
        let (report, gguf) = scene.merge(MergeType::Same);
        assert!(scene.relative_error() < 6e-2 && report.fallbacks.is_empty());
        for t in scene.model.gguf.as_ref().unwrap().tensors() {
            assert_eq!(gguf.tensor(&t.name).unwrap().ty, t.ty);
        }
    }
}

/// A type without an encoder: Q4_1 blocks made by hand.
#[test]
fn touched_tensors_of_a_type_that_is_not_written_become_q8_0() {
    let mut base = TestGguf::golden(BASE).set("general.file_type", OwnedValue::U32(2));
    for t in base.tensors.iter_mut().filter(|t| t.1.len() == 2 && t.1[0] == 32) {
        let blocks = t.1[1] as usize;
        // Scale 2^-6, minimum -2^-3, any quants.
        let quants = |i: usize| (0..16).map(move |j| (i * 7 + j * 13) as u8);
        (t.2, t.3) = (TypeId::Q4_1, Vec::new());
        for i in 0..blocks {
            t.3.extend([0x00, 0x24, 0x00, 0xb0]);
            t.3.extend(quants(i));
        }
    }
    let scene = Scene::new(base);
    let (report, gguf) = scene.merge(MergeType::Same);
    assert!(scene.relative_error() < 6e-2, "off by {}", scene.relative_error());
    assert_eq!(report.fallbacks.len(), 12);
    assert!(report.fallbacks.iter().all(|f| (f.wanted, f.got) == (TypeId::Q4_1, TypeId::Q8_0)));
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().ty, TypeId::Q4_1);
    assert_eq!(gguf.tensor("blk.0.attn_q.weight").unwrap().ty, TypeId::Q8_0);
    assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), Some(7));
}

#[test]
fn what_half_precision_cannot_hold_is_an_error() {
    let mut base = TestGguf::golden(BASE);
    base.tensor("blk.1.ffn_up.weight").3[..4].copy_from_slice(&70_000f32.to_le_bytes());
    let scene = Scene::new(base);
    let out = scene.path("merged.gguf");
    let ty = MergeType::As(TypeId::F16);
    let e = merge(&scene.model, &[(scene.adapter.clone(), 1.0)], &out, ty).unwrap_err();
    assert!(e.code() == "overflow" && e.to_string().contains("blk.1.ffn_up.weight"), "{e:?}");
    assert!(e.hint().unwrap().contains("--type bf16"));
    assert!(!out.exists());
    assert!(merge(&scene.model, &[], &out, MergeType::As(TypeId::BF16)).is_ok());
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let scene = Scene::new(TestGguf::golden(BASE));
    let adapters = [(scene.adapter.clone(), 1.0)];
    let to = |out: PathBuf| merge(&scene.model, &adapters, &out, MergeType::Same).map(|_| ());
    assert_eq!(to(scene.path("base.gguf")).unwrap_err().code(), "merge");
    std::fs::write(scene.path("file"), "kept").unwrap();
    assert!(to(scene.path("file").join("out.gguf")).is_err());
    let hf = Model::open(&golden(BASE)).unwrap();
    let e = merge(&hf, &[], &scene.path("x.gguf"), MergeType::Same).unwrap_err();
    assert!(e.hint().unwrap().contains("convert"));
    let unwritten = merge(&scene.model, &[], &scene.path("x.gguf"), MergeType::As(TypeId::Q4_1));
    assert_eq!(unwritten.unwrap_err().code(), "type");
    assert_eq!(std::fs::read_dir(scene.dir.path()).unwrap().count(), 2);
    assert_eq!(MergeType::parse("Q8_0").unwrap(), MergeType::As(TypeId::Q8_0));
    assert_eq!(MergeType::parse("same").unwrap(), MergeType::Same);
    assert!(MergeType::parse("q4_1").is_err() && MergeType::parse("x").is_err());
}
