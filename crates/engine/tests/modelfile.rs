//! Modelfiles of models with and without a known chat format.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and make files of their own

mod common;

use common::{CHATML, TestGguf};
use planish_engine::{ModelfileOptions, modelfile};

fn text(file: TestGguf, adapter: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let model = file.open(&dir.path().join("x.gguf"));
    modelfile(&model, &ModelfileOptions { from: "./x.gguf", adapter, num_ctx: 64 }).unwrap()
}

#[test]
fn a_known_format_becomes_a_go_template() {
    let got = text(TestGguf::golden("tied_gqa"), Some("./a.gguf"));
    let want = "FROM ./x.gguf\n\
        # The adapter fits this base only: the same model of another type gives other results.\n\
        ADAPTER ./a.gguf\n\
        # ChatML\n\
        TEMPLATE \"\"\"{{- range .Messages }}<|im_start|>{{ .Role }}\n\
        {{ .Content }}<|im_end|>\n\
        {{ end }}<|im_start|>assistant\n\
        \"\"\"\n\
        PARAMETER stop \"<|im_end|>\"\n\
        PARAMETER stop \"</s>\"\n\
        PARAMETER num_ctx 64\n";
    assert_eq!(got, want);
}

#[test]
fn the_systems_message_of_the_template_is_kept() {
    let source = format!(
        "{{% if messages[0].role != 'system' %}}{{{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}}}{{% endif %}}{CHATML}"
    );
    let got = text(TestGguf::golden("tied_gqa").set("tokenizer.chat_template", source.as_str().into()), None);
    assert!(got.contains("SYSTEM \"\"\"You help.\"\"\"\n") && !got.contains("ADAPTER"), "{got}");
}

#[test]
fn an_unknown_format_is_left_to_ollama() {
    let source = CHATML.replace("<|im_start|>", "<|im_end|>");
    let got = text(TestGguf::golden("tied_gqa").set("tokenizer.chat_template", source.as_str().into()), None);
    assert!(!got.contains("TEMPLATE") && got.contains("# The chat format is none"), "{got}");
    let mut none = TestGguf::golden("tied_gqa");
    none.writer.remove("tokenizer.chat_template");
    assert_eq!(
        text(none, None).lines().nth(1).unwrap(),
        "# The model has no chat template: it continues text."
    );
}

#[test]
fn paths_stay_on_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let model = TestGguf::golden("tied_gqa").open(&dir.path().join("x.gguf"));
    let options = ModelfileOptions { from: "x\nSYSTEM y", adapter: None, num_ctx: 64 };
    assert_eq!(modelfile(&model, &options).unwrap_err().code(), "path");
}
