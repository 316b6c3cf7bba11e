use planish_base::TypeId;
use planish_testkit::gguf_bytes::{self, File, Tensor};

use crate::common::{Place, Tiny};
use crate::snapshot;

/// Snapshots how a command refuses the file `bad.gguf`.
fn refuses(name: &str, bytes: Vec<u8>) {
    let place = Place::new();
    place.write("bad.gguf", bytes);
    let run = place.run(&["generate", "@bad.gguf", "-p", "hi"]);
    assert_eq!(run.code, Some(3), "{}", run.all());
    snapshot!(format!("reject_{name}"), run.all());
    let inspect = place.run(&["inspect", "@bad.gguf", "--json"]);
    if inspect.code != Some(0) {
        let error: serde_json::Value = serde_json::from_str(&inspect.stderr).unwrap();
        assert_eq!((inspect.code, &error["error"]["kind"]), (Some(3), &"input".into()));
    }
}

fn tiny_bytes(tiny: &Tiny) -> Vec<u8> {
    let place = Place::new();
    std::fs::read(place.tiny(tiny)).unwrap()
}

#[test]
fn a_file_that_is_not_gguf() {
    refuses("not_gguf", b"PK\x03\x04 this is a zip archive".to_vec());
    refuses("empty", Vec::new());
}

#[test]
fn a_file_that_was_cut() {
    let mut bytes = tiny_bytes(&Tiny::default());
    bytes.truncate(bytes.len() - 1000);
    refuses("truncated", bytes.clone());
    bytes.truncate(100);
    refuses("truncated_header", bytes);
}

#[test]
fn an_unknown_architecture() {
    refuses("architecture", tiny_bytes(&Tiny { architecture: "gpt-neverland", ..Tiny::default() }));
    // What a file says reaches a terminal only in a form that it does not obey.
    refuses("escape", File::new().kv_str("general.architecture", "\u{1b}[2Jllama").bytes());
}

#[test]
fn tensor_types_that_are_unknown_or_not_computed_with() {
    let alien = Tensor { ty: 255, ..Tensor::new("x.weight", &[32, 2], TypeId::F32) };
    refuses("type_255", gguf_bytes::small(3).tensor(alien).bytes());
    let mxfp4 = TypeId::by_name("mxfp4").unwrap();
    refuses("type_mxfp4", tiny_bytes(&Tiny { ty: mxfp4, ..Tiny::default() }));
}

#[test]
fn an_adapter_or_a_directory_where_a_model_should_be() {
    let adapter = File::new().kv_str("general.type", "adapter").kv_str("general.architecture", "llama");
    refuses("adapter_as_model", adapter.bytes());
    let place = Place::new();
    snapshot!("reject_directory", place.run(&["generate", "@", "-p", "hi"]).all());
    snapshot!("reject_absent", place.run(&["eval", "@absent.gguf", "@absent.jsonl"]).all());
}

/// Snapshots how `eval` refuses data.
fn refuses_data(name: &str, tiny: &Tiny, content: &str, args: &[&str]) {
    let place = Place::new();
    place.tiny(tiny);
    place.write("data.jsonl", content);
    let run = place.run(&[&["eval", "@tiny.gguf", "@data.jsonl"], args].concat());
    snapshot!(format!("data_{name}"), run.all());
    assert_eq!(run.code, Some(3), "{}", run.all());
    // `tune` refuses the same before it makes anything.
    let tune = place.run(&[&["tune", "@tiny.gguf", "@data.jsonl", "--out", "@run"], args].concat());
    assert_eq!((tune.code, tune.stderr), (run.code, run.stderr));
    assert!(!place.path("run").exists());
}

const USER: &str = r#"{"role": "user", "content": "hi"}"#;
const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;

#[test]
fn broken_data() {
    let tiny = Tiny::default();
    refuses_data("broken_json", &tiny, &format!("{GOOD}\n{GOOD}\n{{\"messages\": [\n{GOOD}\n"), &[]);
    let role = format!(r#"{{"messages": [{USER}, {{"role": "wizard", "content": "ho"}}]}}"#);
    refuses_data("unknown_role", &tiny, &format!("{GOOD}\n{role}\n"), &[]);
    refuses_data("empty", &tiny, "\n\n", &[]);
    refuses_data("too_long", &tiny, &format!("{GOOD}\n"), &["--context", "10"]);
    refuses_data("no_assistant", &tiny, &format!("{{\"messages\": [{USER}]}}\n"), &[]);
    refuses_data("unknown_shape", &tiny, "{\"instruction\": \"a\", \"output\": \"b\"}\n", &[]);
    let base = Tiny { template: None, ..tiny };
    refuses_data("no_template", &base, &format!("{GOOD}\n"), &[]);
    let bare = Tiny { tokenizer: false, ..tiny };
    refuses_data("no_tokenizer", &bare, "{\"text\": \"hi\"}\n", &[]);
}

#[test]
fn token_ids_that_the_model_does_not_have() {
    let place = Place::new();
    place.tiny(&Tiny { tokenizer: false, ..Tiny::default() });
    place.write("data.jsonl", "{\"input_ids\": [1, 2, 300]}\n");
    snapshot!("data_alien_id", place.run(&["eval", "@tiny.gguf", "@data.jsonl"]).all());
    let run = place.run(&["generate", "@tiny.gguf", "--prompt-ids", "1,300"]);
    snapshot!("generate_alien_id", run.all());
    snapshot!("generate_no_tokenizer", place.run(&["generate", "@tiny.gguf", "-p", "hi"]).all());
}

#[test]
fn settings_out_of_range() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let run = |args: &[&str]| place.run(&[&["generate", "@tiny.gguf", "-p", "hi"], args].concat());
    snapshot!("context_too_large", run(&["--context", "100000"]).all());
    snapshot!("prompt_too_long", run(&["--context", "1"]).all());
    for args in [["--temp", "-1"], ["--top-p", "0"], ["--min-p", "2"], ["--threads", "0"], ["--context", "0"]]
    {
        let run = run(&args);
        assert_eq!(run.code, Some(2), "{}", run.all());
    }
}

#[test]
fn metadata_and_settings_that_would_take_all_memory() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    place.write("data.jsonl", format!("{GOOD}\n{GOOD}\n"));
    for size in ["0", "1000000000", "18446744073709551615"] {
        let run = place.run(&["tune", "@tiny.gguf", "@data.jsonl", "--out", "@run", "--batch-size", size]);
        assert_eq!(run.code, Some(2), "{}", run.all());
        assert!(run.stderr.contains("expected 1 to"), "{}", run.all());
    }
    assert!(!place.path("run").exists());
    let mut bytes = tiny_bytes(&Tiny::default());
    let key = b"llama.embedding_length";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    refuses("embedding_length", bytes);
}

#[test]
fn an_output_that_cannot_be_written() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    place.write("data.jsonl", format!("{GOOD}\n{GOOD}\n"));
    place.write("file", "");
    let run =
        place.run(&["tune", "@tiny.gguf", "@data.jsonl", "--steps", "1", "--out", "@file/run", "--json"]);
    snapshot!(
        "output_not_writable",
        format!("exit code: {:?}\n{}", run.code, run.stderr.lines().last().unwrap())
    );
}

#[test]
fn an_adapter_of_another_base_and_an_output_that_is_the_base() {
    let place = Place::new();
    let base = place.tiny(&Tiny::default());
    place.write("data.jsonl", format!("{GOOD}\n{GOOD}\n"));
    place.run(&["tune", "@tiny.gguf", "@data.jsonl", "--steps", "1", "--out", "@run"]).ok();
    let bytes = std::fs::read(&base).unwrap();
    for out in ["@tiny.gguf", "@run/../tiny.gguf"] {
        let run = place.run(&["merge", "@tiny.gguf", "@run/weights/step_1.gguf", out]);
        assert_eq!(run.code, Some(2), "{}", run.all());
    }
    assert!(std::fs::read(&base).unwrap() == bytes);
    place.tiny(&Tiny { context: 128, ..Tiny::default() });
    let run = place.run(&["generate", "@tiny.gguf", "-p", "hi", "--adapter", "@run/weights/step_1.gguf"]);
    assert_eq!(run.code, Some(3), "{}", run.all());
    snapshot!("adapter_of_another_base", run.all());
}
