//! Modelfiles of models with and without a known chat format.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and make files of their own

mod common;

use common::{CHATML, TestGguf};
use planish_engine::{Model, ModelfileOptions, modelfile};
use planish_store::gguf::OwnedValue;
use planish_text::Message;

const CHATML_GO: &str = "# ChatML\n\
    TEMPLATE \"\"\"{{- range .Messages }}<|im_start|>{{ .Role }}\n\
    {{ .Content }}<|im_end|>\n\
    {{ end }}<|im_start|>assistant\n\
    \"\"\"\n";

fn text(file: TestGguf, adapter: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let model = file.open(&dir.path().join("x.gguf"));
    modelfile(&model, &ModelfileOptions { from: "./x.gguf", adapter, num_ctx: 64 }).unwrap()
}

#[test]
fn a_known_format_becomes_a_go_template() {
    let got = text(TestGguf::golden("tied_gqa"), Some("./a.gguf"));
    let want = format!(
        "FROM ./x.gguf\n\
        # The adapter fits this base only: the same model of another type gives other results.\n\
        ADAPTER ./a.gguf\n\
        {CHATML_GO}\
        PARAMETER stop \"<|im_end|>\"\n\
        PARAMETER stop \"</s>\"\n\
        PARAMETER num_ctx 64\n"
    );
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

/// Models whose BOS token is the mark that begins a turn, with a system message of their own inside the loop.
#[test]
fn chatml_is_recognised_where_its_mark_is_the_bos_token() {
    let source = "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are terse.<|im_end|>\n' }}{% endif %}\
        {{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let id = |token: &str| {
        let at = common::vocabulary().0.iter().position(|t| t == token).unwrap();
        OwnedValue::U32(at as u32)
    };
    let file = TestGguf::golden("tied_gqa")
        .set("tokenizer.chat_template", source.into())
        .set("tokenizer.ggml.bos_token_id", id("<|im_start|>"))
        .set("tokenizer.ggml.eos_token_id", id("<|im_end|>"));
    let want = format!(
        "FROM ./x.gguf\n{CHATML_GO}SYSTEM \"\"\"You are terse.\"\"\"\n\
         PARAMETER stop \"<|im_end|>\"\nPARAMETER num_ctx 64\n"
    );
    assert_eq!(text(file, None), want);
}

/// The same of the real SmolLM2-135M, whose system message has to be what its own template writes.
#[test]
fn smollm2_is_chatml() {
    let Some(path) = planish_testkit::files::needed("PLANISH_MODELS", "smollm2-135m-q4_1.gguf") else {
        return;
    };
    let model = Model::open(&path).unwrap();
    let prompt = model.template.as_ref().unwrap().render(&[Message::new("user", "hi")], None, true).unwrap();
    let system = prompt.strip_prefix("<|im_start|>system\n").unwrap().split_once("<|im_end|>\n").unwrap().0;
    assert!(system.contains("SmolLM"), "{system}");
    let got =
        modelfile(&model, &ModelfileOptions { from: "./x.gguf", adapter: None, num_ctx: 8192 }).unwrap();
    let want = format!(
        "FROM ./x.gguf\n{CHATML_GO}SYSTEM \"\"\"{system}\"\"\"\n\
         PARAMETER stop \"<|im_end|>\"\nPARAMETER num_ctx 8192\n"
    );
    assert_eq!(got, want);
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
