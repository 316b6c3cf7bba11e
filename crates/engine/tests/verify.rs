//! `verify`: good files pass every check, and each thing that can be wrong fails the check of its name.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and make files of their own

mod common;

use std::path::Path;

use common::{CHATML, TestGguf, golden, vocabulary};
use planish_base::TypeId;
use planish_engine::{AdapterFile, Binding, MergeType, Model, Provenance, Report, merge, verify};
use planish_store::gguf::OwnedValue;

const BASE: &str = "tied_gqa";

fn names(report: &Report) -> Vec<&'static str> {
    report.checks.iter().map(|c| c.name).collect()
}

#[track_caller]
fn passes(report: &Report) {
    assert!(report.ok(), "{report:#?}");
    assert!(report.checks.iter().all(|c| !c.detail.is_empty()));
}

#[test]
fn what_planish_writes_passes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let model = TestGguf::golden(BASE).open(&path("base.gguf"));
    let report = verify(&path("base.gguf"), None).unwrap();
    passes(&report);
    let all = [
        "file",
        "layout",
        "key types",
        "vectors",
        "quantisation",
        "vocabulary",
        "special tokens",
        "model",
        "head",
        "finite",
        "chat template",
        "end of turn",
    ];
    assert_eq!(names(&report), all);
    passes(&verify(&golden(BASE), None).unwrap());
    passes(&verify(&golden(BASE).join("peft"), None).unwrap());
    passes(&verify(&golden(BASE).join("peft"), Some(&model)).unwrap());
    let adapter = AdapterFile::read(&golden(BASE).join("peft"), &model, Binding::Strict).unwrap();
    adapter.write_gguf(&model, &path("a.gguf"), &Provenance::default()).unwrap();
    adapter.write_peft(&model, &path("peft")).unwrap();
    passes(&verify(&path("a.gguf"), None).unwrap());
    let report = verify(&path("a.gguf"), Some(&model)).unwrap();
    passes(&report);
    assert_eq!(names(&report), ["file", "layout", "adapter", "base"]);
    passes(&verify(&path("peft"), Some(&model)).unwrap());
    for ty in [TypeId::F16, TypeId::BF16, TypeId::Q8_0] {
        merge(&model, &[(adapter.clone(), 1.0)], &path("m.gguf"), MergeType::As(ty)).unwrap();
        passes(&verify(&path("m.gguf"), None).unwrap());
    }
    let untied = TestGguf::golden("untied_mha").open(&path("untied.gguf"));
    passes(&verify(&path("untied.gguf"), None).unwrap());
    let report = verify(&path("a.gguf"), Some(&untied)).unwrap();
    assert_eq!(report.failed().map(|c| c.name).collect::<Vec<_>>(), ["base"]);
}

#[track_caller]
fn fails(file: &TestGguf, names: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    file.write(&path);
    let report = verify(&path, None).unwrap();
    let failed: Vec<_> = report.failed().map(|c| c.name).collect();
    assert_eq!(failed, names, "{report:#?}");
}

#[test]
fn each_fault_fails_its_check() {
    let base = || TestGguf::golden(BASE);
    fails(&base().set("llama.context_length", OwnedValue::U64(64)), &["key types"]);
    fails(&base().set("tokenizer.ggml.add_bos_token", OwnedValue::U32(1)), &["key types", "model"]);
    fails(&base().set("tokenizer.ggml.eot_token_id", OwnedValue::U32(96)), &["special tokens", "model"]);
    fails(&base().set("tokenizer.ggml.mask_token_id", OwnedValue::U32(96)), &["special tokens"]);
    let (mut tokens, mut kinds) = vocabulary();
    tokens.pop();
    kinds.pop();
    let short = base().set("tokenizer.ggml.tokens", OwnedValue::Strings(tokens));
    fails(&short.set("tokenizer.ggml.token_type", OwnedValue::I32s(kinds)), &["vocabulary"]);
    fails(&base().set("llama.vocab_size", OwnedValue::U32(95)), &["vocabulary"]);
    fails(&base().set("tokenizer.chat_template", "{% for %}".into()), &["model"]);
    let raises = "{{ raise_exception('no') }}";
    fails(&base().set("tokenizer.chat_template", raises.into()), &["chat template", "end of turn"]);
    let endless = CHATML.replace("<|im_end|>", "<|im_start|>");
    fails(&base().set("tokenizer.chat_template", endless.as_str().into()), &["end of turn"]);
    let deaf = CHATML.replace("message['content']", "'x'");
    fails(&base().set("tokenizer.chat_template", deaf.as_str().into()), &["chat template"]);

    let mut nan = base();
    nan.tensor("blk.1.ffn_up.weight").3[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    fails(&nan, &["finite"]);
    let mut missing = base();
    missing.tensors.retain(|t| t.0 != "blk.1.ffn_up.weight");
    fails(&missing, &["model"]);
    let mut half = base();
    let norm = half.tensor("output_norm.weight");
    (norm.2, norm.3) = (TypeId::F16, vec![0; norm.3.len() / 2]);
    fails(&half, &["vectors"]);
    let mut quantised = base().quantised(TypeId::Q8_0);
    quantised.writer.remove("general.quantization_version");
    fails(&quantised, &["quantisation"]);
}

#[test]
fn a_template_that_asks_for_the_date_is_checked() {
    let dated = format!("{{{{ strftime_now('%Y') }}}}{CHATML}");
    fails(&TestGguf::golden(BASE).set("tokenizer.chat_template", dated.as_str().into()), &[]);
}

#[test]
fn damaged_files_fail_and_absent_ones_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    TestGguf::golden(BASE).write(&path);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let report = verify(&path, None).unwrap();
    assert_eq!(report.failed().map(|c| c.name).collect::<Vec<_>>(), ["file"]);
    assert_eq!(verify(&dir.path().join("nothing"), None).unwrap_err().code(), "not found");
    let report = verify(dir.path(), None).unwrap();
    assert_eq!(report.failed().map(|c| c.name).collect::<Vec<_>>(), ["adapter"]);
    copy(&golden(BASE).join("peft"), dir.path());
    let weights = dir.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(!verify(dir.path(), None).unwrap().ok());
}

fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// An adapter that was never trained passes as a file and fails for having no effect.
#[test]
fn an_adapter_without_effect_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let model: Model = TestGguf::golden(BASE).open(&dir.path().join("base.gguf"));
    let mut adapter = AdapterFile::read(&golden(BASE).join("peft"), &model, Binding::Strict).unwrap();
    adapter.pairs.values_mut().for_each(|p| p.b.fill(0.0));
    adapter.write_gguf(&model, &dir.path().join("a.gguf"), &Provenance::default()).unwrap();
    let report = verify(&dir.path().join("a.gguf"), Some(&model)).unwrap();
    assert_eq!(report.failed().map(|c| c.name).collect::<Vec<_>>(), ["effect"]);
}
