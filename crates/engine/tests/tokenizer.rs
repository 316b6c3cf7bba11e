//! Vocabularies that planish made, read by llama.cpp: the same ids for 500 texts. Needs PLANISH_PYTHON, a Python with
//! xllamacpp.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking, read files, run Python

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{TestGguf, json};
use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};
use planish_engine::Model;
use planish_text::{Tokenizer, Vocab, train_bpe};
use serde_json::Value;

/// Argument: a model. Texts come on stdin as a JSON list. Prints for each the ids with control tokens recognised, without,
/// and as a prompt.
const TOKENIZE: &str = r#"
import json, sys, urllib.request, xllamacpp as x
p = x.CommonParams()
p.model.path = sys.argv[1]
p.n_ctx = 64
p.n_parallel = 1
p.warmup = False
p.verbosity = 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
s = x.Server(p)
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
def ids(text, add_special, parse_special):
    body = json.dumps({"content": text, "add_special": add_special, "parse_special": parse_special}).encode()
    request = urllib.request.Request(s.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    with open_url(request) as f:
        return json.load(f)["tokens"]
out = [[ids(t, False, True), ids(t, False, False), ids(t, True, True)] for t in json.load(sys.stdin)]
print("RESULT" + json.dumps(out), flush=True)
"#;

const N_TEXTS: usize = 500;

/// What texts are made of, a list a kind.
const PARTS: &[&[&str]] = &[
    &[
        "the",
        " quick",
        " Brown",
        " fox",
        " jumps",
        "It's",
        " we'll",
        " I'M",
        " don't",
        "'",
        " 'tis",
        "\"quoted\"",
        "end.",
    ],
    &["0", "7", " 12", "123", "1234567890", "3.14", "1e-9", "½", "Ⅷ", "٣٤٥", "²", " $100", "50%", "0x1F"],
    &[" ", "  ", "   ", "    ", "\t", "\t\t", "\u{a0}", "\u{2003}", "\u{3000}", "x", " y"],
    &["\n", "\n\n", "\r\n", "\r", "\n ", " \n", "\n\n\n\n", "\u{85}", "\u{2028}", "a", " b", "."],
    &[
        "Größe",
        "naïve",
        "œuvre",
        "привет",
        " мир",
        "北京的天气",
        "日本語です。",
        "안녕하세요",
        "مرحبا",
        "שלום",
        "नमस्ते",
        "ไทย",
        "Ελλάδα",
        "e\u{301}",
    ],
    &["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "1️⃣", "❤️", "\u{200d}", "\u{fe0f}", " ok", "!"],
    &[
        "fn f(x: &str) -> u8 {\n",
        "    return x+1  # add\n",
        "a[i] != b->c",
        "if (x) {}",
        "};\n\n",
        "snake_case",
        "camelCase",
        "__init__",
        "std::vec",
        "/* */",
        "\\d+\\s*",
        "http://a.b/c?d=e&f",
        "{\"a\": [1, 2]}",
        "\t\tx();\n",
        "<!-- -->",
    ],
    &[
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_",
        "|>",
        "<|",
        "<tool>",
        "</tool>",
        "</s>",
        "<s>",
        " user\n",
        "hi",
        "\n",
    ],
    &[
        "!", "??", "...", "---", "===", "~", "^", "`", "|", "<=", "=>", "&&", "#", "@", "_", "«", "»", "—",
        "…", "€", "a", " ",
    ],
    &[
        "\0",
        "\u{1}",
        "\u{7f}",
        "\u{ad}",
        "\u{feff}",
        "\u{fffd}",
        "\u{10ffff}",
        "\u{e000}",
        "\u{fdd0}",
        "z",
        " ",
    ],
];

/// Different texts: of one kind of part, of all kinds, and of any characters.
fn texts() -> Vec<String> {
    let mut out = BTreeSet::from([String::new()]);
    for i in 0.. {
        if out.len() == N_TEXTS {
            break;
        }
        let stream = Stream::new(0, Purpose::Sample, i);
        let pick = |j: u64, n: usize| (stream.u64(j) % n as u64) as usize;
        let (kind, len) = (i as usize % (PARTS.len() + 3), 1 + pick(0, 12));
        let text = (1..=len as u64).map(|j| match kind.checked_sub(PARTS.len()) {
            None => PARTS[kind][pick(j, PARTS[kind].len())].to_string(),
            Some(0) => {
                let parts = PARTS[pick(j + 100, PARTS.len())];
                parts[pick(j, parts.len())].to_string()
            }
            Some(1) => char::from(0x20 + pick(j, 0x5f) as u8).to_string(),
            // Planes 0 and 1.
            Some(_) => char::from_u32(pick(j, 0x20000) as u32).unwrap_or('\u{fffd}').to_string(),
        });
        out.insert(text.collect());
    }
    out.into_iter().collect()
}

/// A file of a tiny llama with random embeddings and this vocabulary.
fn write(vocab: &Vocab, path: &Path) {
    let mut file = TestGguf::golden("tied_gqa");
    for (key, value) in vocab.to_gguf() {
        file = file.set(&key, value);
    }
    let n = vocab.tokens.len();
    file = file.set("llama.vocab_size", planish_store::gguf::OwnedValue::U32(n as u32));
    let embedding = file.tensor("token_embd.weight");
    let width = embedding.1[0];
    let stream = Stream::new(1, Purpose::Init, 0);
    let values = (0..width * n as u64).flat_map(|i| (stream.normal(i) as f32).to_le_bytes());
    *embedding = (embedding.0.clone(), vec![width, n as u64], TypeId::F32, values.collect());
    file.write(path);
}

fn llama_cpp(python: &Path, model: &Path, texts: &[String]) -> Vec<[Vec<u32>; 3]> {
    let mut command = Command::new(python);
    command.args(["-c", TOKENIZE]).arg(model).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(serde_json::to_string(texts).unwrap().as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let result = text.lines().find_map(|l| l.strip_prefix("RESULT"));
    serde_json::from_str(result.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&out.stderr))))
        .unwrap()
}

fn compare(name: &str, vocab: &Vocab, python: &Path, texts: &[String]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    write(vocab, &path);
    // The file, not the vocabulary it was made from.
    let model = Model::open(&path).unwrap();
    let t: &Tokenizer = model.tokenizer.as_ref().unwrap();
    let mut wrong = Vec::new();
    for (text, want) in texts.iter().zip(llama_cpp(python, &path, texts)) {
        // llama.cpp adds BOS to a text that has one; planish does not.
        let mut prompt = t.encode(text).unwrap();
        if t.add_bos() {
            prompt.insert(0, t.bos().unwrap());
        }
        let got = [t.encode(text).unwrap(), t.encode_plain(text).unwrap(), prompt];
        if got != want {
            wrong.push(format!("{text:?}: {got:?}, llama.cpp {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} of {} differ\n{}", wrong.len(), texts.len(), wrong.join("\n"));
}

#[test]
fn llama_cpp_cuts_500_texts_alike() {
    let Some(python) = planish_testkit::files::needed("PLANISH_PYTHON", "") else {
        return;
    };
    let texts = texts();
    assert_eq!(texts.len(), N_TEXTS);
    // Learned from the texts themselves, so that there are merges of every kind.
    let learned = train_bpe(&texts, 2_000).unwrap();
    assert!(learned.merges.len() > 500, "{}", learned.merges.len());
    compare("learned", &learned, &python, &texts);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/text/tokenizer_json.json");
    for (name, style) in json(&path)["styles"].as_object().unwrap() {
        let file: &Value = &style["file"];
        let vocab = Vocab::from_tokenizer_json(file.to_string().as_bytes(), None).unwrap();
        compare(name, &vocab, &python, &texts);
    }
}
