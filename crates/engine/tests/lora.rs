//! Adapters of every kind, against what peft computes with the directories that it saved (golden/lora).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and read files of their own

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{TestGguf, distance, engine, floats, golden, json, logits, sequences};
use planish_base::TypeId;
use planish_engine::{AdapterFile, Binding, Engine, MergeType, Model, Provenance, check_together, merge};
use planish_model::AdapterSet;
use planish_store::safetensors::SafeTensors;

/// Name, base, and whether llama.cpp can apply the adapter.
const CASES: [(&str, &str, bool); 5] = [
    ("layers", "tied_gqa", true),
    ("pattern", "tied_gqa", true),
    ("tables", "untied_mha", true),
    ("embedding", "tied_gqa", false),
    ("dora", "tied_gqa", false),
];

fn case_dir(case: &str) -> PathBuf {
    golden("../lora").join(case)
}

fn read(case: &str, model: &Model) -> AdapterFile {
    AdapterFile::read(&case_dir(case), model, Binding::Strict).unwrap()
}

/// The log-softmax of every row of the base's sequences.
fn logprobs(engine: &mut Engine, base: &str, adapters: &[&AdapterSet]) -> Vec<f32> {
    let vocab = engine.model.spec.vocab;
    let mut out = Vec::new();
    for ids in sequences(base) {
        for row in logits(engine, &ids, adapters).chunks(vocab) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|l| f64::from(l - max).exp()).sum();
            out.extend(row.iter().map(|l| l - max - sum.ln() as f32));
        }
    }
    out
}

/// peft's log-probabilities of a case.
fn expected(case: &str) -> Vec<f32> {
    let file = SafeTensors::open(&case_dir(case).join("expected.safetensors")).unwrap();
    floats(file.get("logprobs").unwrap().data)
}

/// How far a model with the adapter is from peft.
fn off(case: &str, base: &str, model: Model, file: &AdapterFile) -> f32 {
    let mut engine = engine(model);
    let set = file.attach(&mut engine, 1.0).unwrap();
    let plain = distance(&logprobs(&mut engine, base, &[]), &expected(case));
    assert!(plain > 0.1, "{case}: the adapter changes only {plain}");
    distance(&logprobs(&mut engine, base, &[&set]), &expected(case))
}

#[test]
fn adapters_of_every_kind_give_pefts_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for (case, base, _) in CASES {
        TestGguf::golden(base).write(&dir.path().join("base.gguf"));
        for path in [golden(base), dir.path().join("base.gguf")] {
            let file = read(case, &Model::open(&path).unwrap());
            let off = off(case, base, Model::open(&path).unwrap(), &file);
            assert!(off < 1e-4, "{case} on {}: off by {off:e}", path.display());
        }
    }
}

fn tensors(dir: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let file = SafeTensors::open(&dir.join("adapter_model.safetensors")).unwrap();
    let tensor = |name: &str| {
        let t = file.get(name).unwrap();
        (name.to_string(), (t.shape.clone(), t.data.to_vec()))
    };
    // peft saves the adapted tables as they were; that is not the adapter.
    file.names().filter(|n| !n.contains("base_layer")).map(tensor).collect()
}

/// What is read from peft is written as peft wrote it: names, shapes, bits, and every setting that says where pairs are
/// and what they are multiplied with.
#[test]
fn directories_come_back_as_peft_saved_them() {
    let dir = tempfile::tempdir().unwrap();
    for (case, base, _) in CASES {
        let model = TestGguf::golden(base).open(&dir.path().join("base.gguf"));
        let (file, out) = (read(case, &model), dir.path().join(case));
        file.write_peft(&model, &out).unwrap();
        assert!(tensors(&out) == tensors(&case_dir(case)), "{case}");
        let [got, want] = [&out, &case_dir(case)].map(|d| json(&d.join("adapter_config.json")));
        let keys =
            ["r", "lora_alpha", "rank_pattern", "alpha_pattern", "layers_to_transform", "target_modules"];
        for key in keys.iter().chain(&["use_dora", "use_rslora", "fan_in_fan_out", "base_model_name_or_path"])
        {
            assert_eq!(got[key], want[key], "{case}: {key}");
        }
        assert_eq!(read(case, &model).pairs, file.pairs);
    }
}

/// An adapter GGUF computes the same, factors that it cannot state folded in; what llama.cpp cannot apply is refused.
#[test]
fn adapter_files_say_the_same_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (case, base, applies) in CASES {
        let model = TestGguf::golden(base).open(&dir.path().join("base.gguf"));
        let (file, path) = (read(case, &model), dir.path().join("a.gguf"));
        let written = file.write_gguf(&model, &path, &Provenance::default());
        if !applies {
            let e = written.unwrap_err();
            assert!(e.code() == "adapter" && e.hint().unwrap().contains("planish merge"), "{case}: {e}");
            continue;
        }
        written.unwrap();
        let file = AdapterFile::read(&path, &model, Binding::Strict).unwrap();
        let off = off(case, base, model, &file);
        assert!(off < 1e-4, "{case}: off by {off:e}");
    }
}

/// Folded into its base, an adapter gives the same numbers; one that changes a tied table leaves two behind.
#[test]
fn merged_adapters_give_pefts_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for (case, base, _) in CASES {
        let model = TestGguf::golden(base).open(&dir.path().join("base.gguf"));
        let (file, out) = (read(case, &model), dir.path().join(format!("{case}.gguf")));
        let report = merge(&model, &[(file.clone(), 1.0)], &out, MergeType::As(TypeId::F32)).unwrap();
        assert_eq!((report.untied, report.touched.len()), (case == "embedding", file.pairs.len()));
        let merged = Model::open(&out).unwrap();
        assert_eq!(merged.spec.tied, base == "tied_gqa" && !report.untied);
        let off = distance(&logprobs(&mut engine(merged), base, &[]), &expected(case));
        assert!(off < 1e-4, "{case}: off by {off:e}");
    }
}

#[test]
fn an_adapter_with_magnitudes_is_alone() {
    let dir = tempfile::tempdir().unwrap();
    let model = TestGguf::golden("tied_gqa").open(&dir.path().join("base.gguf"));
    let [dora, layers] = ["dora", "layers"].map(|case| read(case, &model));
    check_together([&dora].into_iter()).unwrap();
    check_together([&layers, &layers].into_iter()).unwrap();
    assert!(check_together([&dora, &layers].into_iter()).unwrap_err().hint().is_some());
    let both = [(layers, 1.0), (dora, 1.0)];
    assert_eq!(
        merge(&model, &both, &dir.path().join("m.gguf"), MergeType::Same).unwrap_err().code(),
        "adapter"
    );
}
