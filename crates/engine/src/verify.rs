//! Would llama.cpp take this file, and does it say what it should? A written file is opened anew and checked as a
//! stranger's would be.
//!
//! What only planish minds (a tensor type it has no codec for) is an error of the check `model` too: a file that
//! planish cannot compute with cannot be verified by it.

use std::path::Path;

use planish_base::{Error, Kind, Result, TypeId};
use planish_compute::quant::Quant;
use planish_compute::{CpuBackend, Isa};
use planish_model::{Params, Trainable, Weights};
use planish_store::fs;
use planish_store::gguf::{Gguf, Metadata, Value, ValueType};
use planish_text::{ChatTemplate, Encoder, Message, Tokenizer, Turn};

use crate::adapter::{AdapterFile, Binding, read_raw};
use crate::model::Model;

/// llama.cpp keeps tensor names in 64 bytes with a terminating zero.
const MAX_NAME_BYTES: usize = 63;
/// Elements decoded at a time: whole blocks of every type.
const CHUNK: usize = 1 << 15;
/// A day for templates that ask for one: they are checked for working, not for today.
const SOME_DAY: &str = "2025-01-01";

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, one or two words.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// All checks of a file, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether every check passed.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|c| c.ok)
    }

    /// The checks that did not pass.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| !c.ok)
    }

    fn add(&mut self, name: &'static str, result: Result<String>) {
        let ok = result.is_ok();
        let detail = result.unwrap_or_else(|e| match e.hint() {
            Some(hint) => format!("{e} ({hint})"),
            None => e.to_string(),
        });
        self.checks.push(Check { name, ok, detail });
    }
}

/// Checks a GGUF model, a Hugging Face directory, an adapter GGUF or a PEFT directory. An adapter is checked against
/// `base` where one is given.
///
/// # Errors
/// When the file is not there or cannot be read. What is wrong *in* it is a failed check.
pub fn verify(path: &Path, base: Option<&Model>) -> Result<Report> {
    let mut report = Report::default();
    if fs::is_dir(path) {
        match fs::exists(&path.join("config.json")) && !fs::exists(&path.join("adapter_config.json")) {
            true => verify_model(path, &mut report)?,
            false => verify_adapter(path, base, &mut report)?,
        }
        return Ok(report);
    }
    let Some(gguf) = opened(Gguf::open(path), "file", &mut report)? else { return Ok(report) };
    let tensors = gguf.tensors();
    report.add("file", Ok(format!("version {}, {} tensors", gguf.version(), tensors.len())));
    report.add("layout", layout(&gguf));
    if gguf.metadata().str("general.type").ok().flatten() == Some("adapter") {
        verify_adapter(path, base, &mut report)?;
        return Ok(report);
    }
    report.add("key types", key_types(gguf.metadata()));
    report.add("vectors", vectors(&gguf));
    report.add("quantisation", quantisation(&gguf));
    report.add("vocabulary", vocabulary(&gguf));
    report.add("special tokens", special_tokens(gguf.metadata()));
    verify_model(path, &mut report)?;
    Ok(report)
}

/// What was opened; else a failed check, or the error when the file could not be read at all.
fn opened<T>(result: Result<T>, name: &'static str, report: &mut Report) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == Kind::Resource || ["not found", "not a file"].contains(&e.code()) => Err(e),
        Err(e) => {
            report.add(name, Err(e));
            Ok(None)
        }
    }
}

fn verify_model(path: &Path, report: &mut Report) -> Result<()> {
    let Some(model) = opened(Model::open(path), "model", report)? else { return Ok(()) };
    report.add("model", shapes(&model));
    report.add("head", Ok(head(&model)));
    report.add("finite", finite(&model.weights));
    if let Some(m) = model.metadata()
        && m.contains("tokenizer.chat_template")
        && let Some(tokenizer) = &model.tokenizer
    {
        report.add("chat template", chat(m, tokenizer));
        report.add("end of turn", end_of_turn(m, tokenizer));
    }
    Ok(())
}

fn verify_adapter(path: &Path, base: Option<&Model>, report: &mut Report) -> Result<()> {
    let Some(raw) = opened(read_raw(path), "adapter", report)? else { return Ok(()) };
    let ranks: std::collections::BTreeSet<usize> = raw.pairs.values().map(|p| p.rank).collect();
    let still = raw.pairs.values().filter(|p| p.b.iter().all(|v| *v == 0.0)).count();
    report.add("adapter", Ok(format!("{} pairs of rank {ranks:?}, all values finite", raw.pairs.len())));
    if still == raw.pairs.len() {
        let why = "every B is zero, so the adapter changes nothing";
        report.add("effect", Err(Error::input("adapter", why)));
    }
    if let Some(base) = base {
        let read = AdapterFile::read(path, base, Binding::Strict);
        report.add("base", read.map(|_| format!("names, shapes and hash fit {}", base.path.display())));
    }
    Ok(())
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Check, "verify", what)
}

fn layout(gguf: &Gguf) -> Result<String> {
    if let Some(t) = gguf.tensors().iter().find(|t| t.name.len() > MAX_NAME_BYTES) {
        return Err(wrong(format!("the name of tensor `{}` has more than {MAX_NAME_BYTES} bytes", t.name)));
    }
    match gguf.is_packed() {
        true => Ok(format!("tensors follow each other at an alignment of {}", gguf.alignment())),
        false => Err(wrong("tensors do not follow each other in the order of their descriptors")
            .with_hint("llama.cpp refuses gaps; write the file again")),
    }
}

/// llama.cpp reads these keys with one type only. Head counts may be an array, one a block.
fn key_types(m: &Metadata) -> Result<String> {
    let arch = m.require_str("general.architecture")?;
    let hyper = |keys: &[&str]| keys.iter().map(|k| format!("{arch}.{k}")).collect::<Vec<_>>();
    let mut counts = hyper(&[
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "vocab_size",
    ]);
    counts.extend(["general.file_type", "general.quantization_version"].map(str::to_string));
    counts.extend(id_keys(m).map(str::to_string));
    let floats = hyper(&["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"]);
    let flags = ["bos", "eos", "space_prefix", "sep"].map(|k| match k {
        "space_prefix" => "tokenizer.ggml.add_space_prefix".to_string(),
        k => format!("tokenizer.ggml.add_{k}_token"),
    });
    let mut seen = 0;
    for (keys, ty) in
        [(&counts[..], ValueType::U32), (&floats[..], ValueType::F32), (&flags[..], ValueType::Bool)]
    {
        for key in keys {
            let Some(value) = m.get(key) else { continue };
            seen += 1;
            let fits = value.value_type() == ty || matches!(value, Value::Array(_));
            if !fits {
                return Err(wrong(format!("`{key}` is {}, expected {}", value.type_name(), ty.name())));
            }
        }
    }
    Ok(format!("{seen} keys have the types that llama.cpp asks for"))
}

fn id_keys(m: &Metadata) -> impl Iterator<Item = &str> {
    m.iter().map(|(k, _)| k).filter(|k| k.starts_with("tokenizer.ggml.") && k.ends_with("_token_id"))
}

fn vectors(gguf: &Gguf) -> Result<String> {
    let vectors = || gguf.tensors().iter().filter(|t| t.dims.len() == 1);
    match vectors().find(|t| t.ty != TypeId::F32) {
        None => Ok(format!("all {} are f32", vectors().count())),
        Some(t) => Err(wrong(format!("tensor `{}` is {}, vectors must be f32", t.name, t.ty.name()))),
    }
}

fn quantisation(gguf: &Gguf) -> Result<String> {
    let quantised = |ty: TypeId| ty.layout().is_some_and(|l| l.block > 1);
    if !gguf.tensors().iter().any(|t| quantised(t.ty)) {
        return Ok("no tensor is quantised".to_string());
    }
    match gguf.metadata().u32("general.quantization_version")? {
        Some(2) => Ok("`general.quantization_version` is 2".to_string()),
        other => Err(wrong(format!("`general.quantization_version` is {other:?}, quantised tensors need 2"))),
    }
}

/// As many tokens, scores and types as rows of the embedding: others read one row a token.
fn vocabulary(gguf: &Gguf) -> Result<String> {
    let m = gguf.metadata();
    let embedding = gguf.tensor("token_embd.weight").and_then(|t| t.dims.get(1).copied());
    let rows = embedding.ok_or_else(|| wrong("there is no matrix `token_embd.weight`"))?;
    let arch = m.require_str("general.architecture")?;
    let stated = m.u32(&format!("{arch}.vocab_size"))?.map(u64::from);
    let length = |key: &str| m.array_len(&format!("tokenizer.ggml.{key}")).map(|n| n as u64);
    let counts = [
        ("vocab_size", stated),
        ("tokens", length("tokens")),
        ("scores", length("scores")),
        ("token_type", length("token_type")),
    ];
    for (what, count) in counts {
        if let Some(count) = count.filter(|n| *n != rows) {
            return Err(wrong(format!("{what} has {count}, the embedding {rows} rows"))
                .with_hint("tokens were added or dropped on one side only"));
        }
    }
    Ok(match counts[1].1 {
        Some(_) => format!("{rows} tokens, as many as rows of the embedding"),
        None => format!("no tokenizer; the embedding has {rows} rows"),
    })
}

fn special_tokens(m: &Metadata) -> Result<String> {
    let count = m.array_len("tokenizer.ggml.tokens").unwrap_or(0);
    for key in id_keys(m) {
        if let Some(id) = m.u32(key)?.filter(|id| *id as usize >= count) {
            return Err(wrong(format!("`{key}` is {id}, there are {count} tokens")));
        }
    }
    Ok(format!("{} ids, each below {count}", id_keys(m).count()))
}

/// Builds the parameters as a run would: every tensor is there, none is left over, shapes are the Spec's.
fn shapes(model: &Model) -> Result<String> {
    let mut backend = CpuBackend::new(Isa::detect(), 1)?;
    let (spec, nothing) = (&model.spec, &Trainable::Nothing);
    let params = Params::load(&mut backend, model.arch, spec, &model.weights, nothing, 1)?;
    let (blocks, tensors) = (spec.layers.len(), params.named.len());
    Ok(format!("{} of {blocks} blocks: {tensors} tensors of the expected shapes", spec.arch))
}

fn head(model: &Model) -> String {
    let entry = |name: &str| model.weights.entries.get(name).map(|e| (e.dtype, model.weights.bytes(e)));
    match (model.spec.tied, entry("output.weight") == entry("token_embd.weight")) {
        (true, _) => "tied: the embedding is the head",
        (false, true) => "of its own, but equal to the embedding",
        (false, false) => "of its own",
    }
    .to_string()
}

fn finite(weights: &Weights) -> Result<String> {
    let mut values = vec![0f32; CHUNK];
    for (name, e) in &weights.entries {
        let quant = Quant::of(e.dtype).map_err(|err| err.at(format!("tensor `{name}`")))?;
        let bytes = CHUNK / quant.block() * quant.block_bytes();
        for (i, chunk) in weights.bytes(e).chunks(bytes).enumerate() {
            let n = chunk.len() / quant.block_bytes() * quant.block();
            (quant.decode)(Isa::detect(), chunk, &mut values[..n]);
            if let Some(j) = values[..n].iter().position(|v| !v.is_finite()) {
                let (row, col) = ((i * CHUNK + j) / e.cols, (i * CHUNK + j) % e.cols);
                return Err(wrong(format!("tensor `{name}` is {} at [{row}, {col}]", values[j])));
            }
        }
    }
    Ok(format!("all values of {} tensors", weights.entries.len()))
}

fn conversation() -> [Message; 2] {
    [Message::new("user", "hi"), Message::new("assistant", "hello")]
}

/// The template with a date, so that one that asks for it can be rendered.
fn template(m: &Metadata, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let template = ChatTemplate::from_gguf(m, tokenizer)?;
    template.ok_or_else(|| wrong("there is no template"))?.with_date(SOME_DAY)
}

fn chat(m: &Metadata, tokenizer: &Tokenizer) -> Result<String> {
    let text = template(m, tokenizer)?.render(&conversation(), None, false)?;
    let missing = conversation().into_iter().find(|m| !text.contains(&m.content));
    match missing {
        None => Ok(format!("a conversation of two messages has {} bytes", text.len())),
        Some(m) => Err(wrong(format!("the template leaves out what the {} says", m.role))),
    }
}

fn end_of_turn(m: &Metadata, tokenizer: &Tokenizer) -> Result<String> {
    let template = template(m, tokenizer)?;
    let id = turn_end(tokenizer, &template)?;
    let text = tokenizer.token_text(id).unwrap_or_default();
    match tokenizer.is_end_of_generation(id) {
        true => Ok(format!("the template ends a turn with {text:?} ({id}), where generation ends")),
        false => {
            Err(wrong(format!("the template ends a turn with {text:?} ({id}), where generation goes on"))
                .with_hint("set tokenizer.ggml.eot_token_id to the token that ends a turn"))
        }
    }
}

/// The last token that the model itself writes in a turn of the assistant.
pub(crate) fn turn_end(tokenizer: &Tokenizer, template: &ChatTemplate) -> Result<u32> {
    let turns = conversation().map(|message| Turn { train: message.role == "assistant", message });
    let encoder =
        Encoder { tokenizer: Some(tokenizer), template: Some(template), specials_in_content: false };
    let example = encoder.chat(&turns, None)?;
    let last = example.trained.iter().rposition(|t| *t);
    last.map(|i| example.ids[i]).ok_or_else(|| wrong("no token of the assistant's turn is trained"))
}
