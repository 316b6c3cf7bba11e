//! What the tests share: running the program, tiny models, files of data.
#![allow(dead_code)]
// Tests make files of their own, and unwrap outside of `#[test]` too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]

pub mod runs;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use planish_base::TypeId;
use planish_compute::quant::Quant;
use planish_store::gguf::{OwnedValue, Writer};
use planish_testkit::tiny;
use tempfile::TempDir;

/// As SmolLM and Qwen write turns.
pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const CONTROL: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"];

/// The program, with nothing of the caller's environment that it or clap would look at.
pub fn planish() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planish"));
    for name in ["TAO_RUN_DIR", "TOY_RUN_ID", "COLUMNS", "NO_COLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.timeout(std::time::Duration::from_secs(120));
    command
}

/// A folder for one test, with what the program printed about it made the same on every machine.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A tiny model in `tiny.gguf`.
    pub fn tiny(&self, tiny: &Tiny) -> PathBuf {
        let path = self.path("tiny.gguf");
        tiny.write(&path);
        path
    }

    /// Runs with arguments in which `@name` is a file of this folder; stdin is empty.
    pub fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, "")
    }

    pub fn run_with(&self, args: &[&str], stdin: &str) -> Run {
        let of = |a: &&str| match a.strip_prefix('@') {
            Some(name) => self.path(name).display().to_string(),
            None => (*a).to_owned(),
        };
        let args: Vec<String> = args.iter().map(of).collect();
        let output = planish().args(args).write_stdin(stdin).output().unwrap();
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).unwrap().replace(&self.dir.path().display().to_string(), "[DIR]")
        };
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// What a run of the program came to.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Exit code, stdout and stderr as one text for a snapshot.
    pub fn all(&self) -> String {
        let code = self.code.map_or("none".to_owned(), |c| c.to_string());
        format!("exit code: {code}\n--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }

    /// Stdout of a run that ended well.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.all());
        self.stdout
    }

    /// Each line of stdout as JSON.
    pub fn json(self) -> Vec<serde_json::Value> {
        self.ok().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// A random llama of two blocks: what differs between tests.
#[derive(Clone, Copy)]
pub struct Tiny {
    pub architecture: &'static str,
    pub context: u32,
    pub tokenizer: bool,
    pub template: Option<&'static str>,
    /// Type of the matrices; types that are not written are zero.
    pub ty: TypeId,
}

impl Default for Tiny {
    fn default() -> Self {
        Tiny { architecture: "llama", context: 256, tokenizer: true, template: Some(CHATML), ty: TypeId::F32 }
    }
}

impl Tiny {
    pub fn write(&self, path: &Path) {
        let (tokens, kinds, merges) = vocabulary();
        let mut w = Writer::new();
        w.set("general.architecture", self.architecture.into());
        w.set("general.name", "tiny".into());
        for (key, value) in [("context_length", self.context)].iter().chain(tiny::KEYS) {
            w.set(&format!("llama.{key}"), OwnedValue::U32(*value));
        }
        w.set("llama.attention.layer_norm_rms_epsilon", OwnedValue::F32(1e-5));
        if self.tokenizer {
            let id = |text: &str| OwnedValue::U32(tokens.iter().position(|t| t == text).unwrap() as u32);
            w.set("tokenizer.ggml.model", "gpt2".into());
            w.set("tokenizer.ggml.pre", "gpt-2".into());
            w.set("tokenizer.ggml.eos_token_id", id("<|im_end|>"));
            w.set("tokenizer.ggml.bos_token_id", id("<|endoftext|>"));
            w.set("tokenizer.ggml.token_type", OwnedValue::I32s(kinds));
            w.set("tokenizer.ggml.tokens", OwnedValue::Strings(tokens.clone()));
            w.set("tokenizer.ggml.merges", OwnedValue::Strings(merges));
            if let Some(template) = self.template {
                w.set("tokenizer.chat_template", template.into());
            }
        }
        let tensors = tiny::tensors(tokens.len() as u64, TypeId::F32, self.ty);
        for (name, dims, ty) in &tensors {
            w.tensor(name, dims, *ty).unwrap();
        }
        let fill = |i: usize, sink: &mut dyn std::io::Write| {
            sink.write_all(&values(i, &tensors[i])).unwrap();
            Ok(())
        };
        w.write(path, fill).unwrap();
    }
}

/// The bytes of tensor `i`; a type that is not written is zeros.
fn values(i: usize, (_, dims, ty): &tiny::Tensor) -> Vec<u8> {
    let values = tiny::values(i, dims);
    let mut bytes = vec![0; ty.layout().unwrap().size_of(values.len() as u64).unwrap() as usize];
    if let Some(encode) = Quant::of(*ty).ok().and_then(|q| q.encode) {
        encode(&values, &mut bytes);
    }
    bytes
}

/// A token for each byte as GPT-2 spells them, some merges, control tokens: 300 tokens.
fn vocabulary() -> (Vec<String>, Vec<i32>, Vec<String>) {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = (0x100u32..).filter_map(char::from_u32);
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| if printable(&b) { char::from(b) } else { others.next().unwrap() }.to_string())
        .collect();
    let merges: Vec<String> =
        ('b'..='z').map(|c| format!("{c} a")).chain(('b'..='p').map(|c| format!("{c} e"))).collect();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let mut kinds = vec![1; tokens.len()];
    tokens.extend(CONTROL.map(str::to_owned));
    kinds.resize(tokens.len(), 3);
    assert_eq!(tokens.len(), 300);
    (tokens, kinds, merges)
}

/// A file below `$PLANISH_SHARED`, where there is one.
pub fn shared(name: &str) -> Option<PathBuf> {
    planish_testkit::files::needed("PLANISH_SHARED", name)
}

/// Snapshots `text`, with speeds and times taken out.
#[macro_export]
macro_rules! snapshot {
    ($name:expr, $text:expr) => {
        let mut settings = insta::Settings::clone_current();
        settings.add_filter(r"[0-9.]+ tokens/s", "[SPEED] tokens/s");
        settings.add_filter(r#""(tokens_per_second|seconds)":[0-9.e-]+"#, "\"$1\":[TIME]");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_snapshot_path("../snapshots");
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!($name, $text));
    };
}
