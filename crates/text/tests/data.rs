//! Data files: every format, and an error with its line for everything that is none.

// The tests write the files that the library reads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::byte_tokenizer;
use planish_text::{ChatTemplate, Dataset, FORMATS, LengthPolicy, LoadOptions, Result, load};

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn write(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn load_with(name: &str, content: &str, o: &LoadOptions) -> Result<Dataset> {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), name, content.as_bytes());
    let tokenizer = byte_tokenizer(None, Some("<|im_end|>"));
    let template = ChatTemplate::new(CHATML, "", "<|im_end|>").unwrap();
    load(&[path], Some(&tokenizer), Some(&template), o)
}

fn lines(content: &str) -> Result<Dataset> {
    load_with("data.jsonl", content, &LoadOptions::default())
}

const CHAT: &str =
    r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;

#[test]
fn each_format_is_found_by_its_keys() {
    let samples = [
        ("chat", CHAT, 2),
        ("prompt/completion", r#"{"prompt": "a", "completion": "b", "id": 7}"#, 2),
        ("text", r#"{"text": "ab", "meta": {"x": 1}}"#, 2),
        ("input_ids", r#"{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}"#, 1),
    ];
    assert_eq!(samples.map(|s| s.0).to_vec(), FORMATS.iter().map(|f| f.name).collect::<Vec<_>>());
    for (name, line, trained) in samples {
        let data = lines(&format!("\u{FEFF}{line}\r\n\n{line}")).unwrap();
        assert_eq!(data.examples.len(), 2, "{name}");
        assert_eq!(data.report.trained_tokens, 2 * trained, "{name}");
        assert!(data.examples[1].place.ends_with("data.jsonl:3"), "{name}");
    }
    let data = load_with("book.txt", "Once\nupon", &LoadOptions::default()).unwrap();
    assert_eq!((data.examples.len(), data.report.trained_tokens), (1, 9));
    assert_eq!(data.report.end_of_turn.unwrap().min, 1);
}

#[test]
fn errors_say_path_line_and_reason() {
    let ok = r#"{"text": "ab"}"#;
    let deep = format!("{{\"text\": {}", "[".repeat(100_000));
    let cases: &[(&str, &str, &str)] = &[
        ("", "empty file", "holds no example"),
        ("\n \n", "empty file", "holds no example"),
        ("{\"text\": ", "json", ":2: broken JSON"),
        (&deep, "json", ":2: broken JSON"),
        ("[{\"text\": \"a\"}]", "json", ":2: a JSON array"),
        ("7", "json", ":2: expected a JSON object"),
        (CHAT, "mixed formats", ":2: a chat line in a file that began with text lines"),
        (r#"{"text": "a", "messages": []}"#, "mixed formats", "fit two formats, chat and text"),
        (r#"{"foo": 1}"#, "format", "keys: foo"),
        (r#"{"instruction": "a", "output": "b"}"#, "format", "Alpaca"),
        (r#"{"conversations": []}"#, "format", "ShareGPT"),
        (r#"{"chosen": "a", "rejected": "b"}"#, "format", "preference"),
        (r#"{"text": 7}"#, "field", "\"text\" is a number"),
        (r#"{"text": ""}"#, "empty text", "empty"),
    ];
    for (line, code, message) in cases {
        let first = if code == &"empty file" { String::new() } else { format!("{ok}\n") };
        let e = lines(
            &format!("{first}{line}\n{ok}")
                .replace(&format!("\n{ok}"), if first.is_empty() { "" } else { "\n" }),
        );
        let e = e.unwrap_err();
        assert_eq!(&e.code(), code, "{line:.60}: {e}");
        assert!(e.to_string().contains(message), "{line:.60}: {e}");
        assert!(e.to_string().contains("data.jsonl"), "{e}");
    }
}

#[test]
fn errors_of_one_format_are_clear_too() {
    let chat = |messages: &str| format!("{{\"messages\": {messages}}}");
    let user = r#"{"role": "user", "content": "a"}"#;
    let cases = [
        (chat("7"), "field", "\"messages\" is a number"),
        (chat("[7]"), "field", ":1: message 0: a number"),
        (chat("[]"), "no assistant turn", "no message of the assistant"),
        (chat(&format!("[{user}]")), "no assistant turn", ":1: "),
        (chat(r#"[{"role": "robot", "content": "a"}]"#), "role", "unknown role \"robot\""),
        (chat(r#"[{"content": "a"}]"#), "field", "\"role\" is absent"),
        (chat(r#"[{"role": "user"}]"#), "field", "\"content\" is absent"),
        (chat(r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#), "content", "image_url"),
        (
            chat(&format!(r#"[{user}, {{"role": "assistant", "content": "b", "train": false}}]"#)),
            "no trained tokens",
            "",
        ),
        (
            chat(&format!(r#"[{user}, {{"role": "assistant", "content": "b", "weight": 0}}]"#)),
            "no trained tokens",
            "",
        ),
        (
            chat(&format!(r#"[{user}, {{"role": "assistant", "content": "b", "weight": 0.5}}]"#)),
            "field",
            "0.5",
        ),
        (r#"{"prompt": "a", "completion": ""}"#.into(), "no trained tokens", "empty"),
        (r#"{"prompt": "a", "completion": "b", "label": true}"#.into(), "format", "KTO"),
        (r#"{"prompt": [], "completion": "b"}"#.into(), "field", "an array"),
        (r#"{"input_ids": [1, 2], "labels": [1]}"#.into(), "labels", "1 labels for 2"),
        (r#"{"input_ids": [1, 2], "labels": [-100, 3]}"#.into(), "labels", "labels[1] is 3"),
        (r#"{"input_ids": [1, 2], "labels": [-100, -100]}"#.into(), "no trained tokens", ""),
        (r#"{"input_ids": [1]}"#.into(), "no trained tokens", ""),
        (r#"{"input_ids": []}"#.into(), "no trained tokens", ""),
        (r#"{"input_ids": [1, -1]}"#.into(), "token id", "input_ids[1] is -1"),
        (r#"{"input_ids": [1, 99999]}"#.into(), "token id", "below 272"),
        (r#"{"input_ids": [1, 1e300]}"#.into(), "field", "expected an integer"),
    ];
    for (line, code, message) in cases {
        let e = lines(&line).unwrap_err();
        assert_eq!(e.code(), code, "{line}: {e}");
        assert!(e.to_string().contains(message) && e.to_string().contains("data.jsonl:1: "), "{line}: {e}");
    }
}

#[test]
fn files_of_other_kinds_are_refused() {
    let o = LoadOptions::default();
    assert_eq!(load_with("data.parquet", "x", &o).unwrap_err().code(), "data file");
    assert_eq!(load_with("data.jsonl.gz", "x", &o).unwrap_err().code(), "data file");
    assert_eq!(load(&[], None, None, &o).unwrap_err().code(), "no data");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(load(&[dir.path().into()], None, None, &o).unwrap_err().code(), "directory");
    assert!(load(&[dir.path().join("absent.jsonl")], None, None, &o).is_err());
    let latin = write(dir.path(), "latin.jsonl", b"{\"text\": \"\xE9\"}\n");
    let t = byte_tokenizer(None, None);
    assert!(load(&[latin], Some(&t), None, &o).unwrap_err().to_string().contains("latin.jsonl:1"));
    let short = LoadOptions { max_line_bytes: 8, max_text_bytes: 8, ..o };
    assert!(load_with("data.jsonl", CHAT, &short).is_err());
    assert!(load_with("book.txt", "longer than that", &short).is_err());
}

#[test]
fn token_ids_need_no_tokenizer_and_files_may_differ_in_format() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(dir.path(), "a.jsonl", br#"{"input_ids": [1, 2, 4000000000]}"#);
    let data = load(std::slice::from_ref(&a), None, None, &LoadOptions::default()).unwrap();
    assert_eq!(data.examples[0].trained, [false, true, true]);
    assert_eq!(data.report.end_of_turn, None);
    let a = write(dir.path(), "a.jsonl", br#"{"input_ids": [1, 2]}"#);
    let b = write(dir.path(), "b.txt", b"text");
    let t = byte_tokenizer(None, None);
    assert_eq!(load(&[a, b], Some(&t), None, &LoadOptions::default()).unwrap().examples.len(), 2);
}

#[test]
fn too_long_examples_follow_the_policy() {
    let content = format!("{CHAT}\n{}", CHAT.replace("\"b\"", &format!("\"{}\"", "b".repeat(100))));
    let with = |policy| {
        load_with("data.jsonl", &content, &LoadOptions { context: 40, policy, ..LoadOptions::default() })
    };
    let e = with(LengthPolicy::Error).unwrap_err();
    assert!(e.to_string().starts_with("1 of 2 examples are longer than the context of 40 tokens"), "{e}");
    assert!(e.hint().unwrap().contains("fits all"));
    let data = with(LengthPolicy::Drop).unwrap();
    assert_eq!((data.report.examples, data.report.dropped), (1, 1));
    let data = with(LengthPolicy::Truncate).unwrap();
    assert_eq!(
        (data.report.examples, data.report.truncated, data.report.end_of_turn.unwrap().min),
        (2, 1, 0)
    );
    let data = with(LengthPolicy::Split).unwrap();
    assert_eq!((data.report.split, data.report.trained_tokens), (1, 2 + 101));
    assert!(data.examples[2].place.ends_with(":2 from token 39"), "{}", data.examples[2].place);
}

#[test]
fn a_template_without_end_of_turn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "data.jsonl", CHAT.as_bytes());
    let tokenizer = byte_tokenizer(None, Some("<|im_end|>"));
    let source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}\
                  {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let e = load(&[path], Some(&tokenizer), Some(&template), &LoadOptions::default()).unwrap_err();
    assert_eq!(e.code(), "no end of turn");
}
