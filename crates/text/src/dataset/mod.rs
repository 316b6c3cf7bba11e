//! Data files to examples. A format is one file of this folder and one line of [`FORMATS`].

mod chat;
mod completion;
mod raw;
mod text;
mod tokens;

pub use raw::each_text;

use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_store::fs;
use serde_json::{Map, Value};

use crate::{ChatTemplate, Encoder, Example, LengthPolicy, Report, Tokenizer, length};

/// A shape of JSON objects, one a line.
pub struct Format {
    /// Short name.
    pub name: &'static str,
    /// The shape, for help and error messages.
    pub shape: &'static str,
    /// All of these keys are there.
    pub keys: &'static [&'static str],
    /// Makes an example of an object.
    pub encode: fn(&Encoder<'_>, &Map<String, Value>) -> Result<Example>,
}

/// All formats.
pub static FORMATS: &[Format] = &[chat::FORMAT, completion::FORMAT, text::FORMAT, tokens::FORMAT];

/// Shapes that other tools read and we do not yet: better named than called unknown.
static FOREIGN: &[(&str, &[&str])] = &[
    ("Alpaca", &["instruction", "output"]),
    ("ShareGPT", &["conversations"]),
    ("preference", &["chosen", "rejected"]),
];

/// How [`load`] works.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The longest example, in tokens.
    pub context: usize,
    /// What becomes of longer ones.
    pub policy: LengthPolicy,
    /// Recognise control tokens in the content of messages.
    pub specials_in_content: bool,
    /// Longest line, or text file, in bytes.
    pub max_line_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context: 1024,
            policy: LengthPolicy::Error,
            specials_in_content: false,
            max_line_bytes: 64 << 20,
        }
    }
}

/// Examples, and what they amount to.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// In the order of files and lines.
    pub examples: Vec<Example>,
    /// Counts.
    pub report: Report,
}

/// Reads files: `.jsonl` (`.ndjson`, `.json`) with one object a line, in one of [`FORMATS`] all through a file, or
/// `.txt` (`.md`), each one example of text. Blank lines are skipped.
///
/// Errors, each with path and line: a line that is not an object of a known shape; a file that mixes formats or is
/// empty; an example that cannot be encoded or has nothing to train; conversations that never train an end of turn;
/// examples longer than the context, as the policy says.
pub fn load(
    paths: &[PathBuf],
    tokenizer: Option<&Tokenizer>,
    template: Option<&ChatTemplate>,
    o: &LoadOptions,
) -> Result<Dataset> {
    if paths.is_empty() {
        return Err(Error::usage("no data", "no data file is given"));
    }
    let encoder = Encoder { tokenizer, template, specials_in_content: o.specials_in_content };
    let mut examples = Vec::new();
    for path in paths {
        let before = examples.len();
        let format = load_file(path, &encoder, o, &mut examples)?;
        if examples.len() == before {
            return Err(Error::input("empty file", "the file holds no example").in_file(path));
        }
        if format == chat::FORMAT.name {
            check_end_of_turn(&examples[before..], tokenizer).map_err(|e| e.in_file(path))?;
        }
    }
    fitted(examples, tokenizer, o)
}

impl Dataset {
    /// Examples of texts, each with the place it came from.
    ///
    /// # Errors
    /// As [`load`].
    pub fn of_texts(
        texts: impl Iterator<Item = (String, String)>,
        tokenizer: &Tokenizer,
        o: &LoadOptions,
    ) -> Result<Dataset> {
        let encoder = Encoder { tokenizer: Some(tokenizer), ..Encoder::default() };
        let mut examples = Vec::new();
        for (place, text) in texts {
            let example = encoder.text(&text).map_err(|e| e.at(&place))?;
            examples.push(Example { place, ..example });
        }
        fitted(examples, Some(tokenizer), o)
    }
}

fn fitted(examples: Vec<Example>, tokenizer: Option<&Tokenizer>, o: &LoadOptions) -> Result<Dataset> {
    let mut report = Report::measure(&examples, tokenizer);
    let examples = length::fit(examples, o.context, o.policy, &mut report)?;
    report.recount(&examples, tokenizer);
    Ok(Dataset { examples, report })
}

/// A model that never sees the end of a turn does not learn to stop.
fn check_end_of_turn(examples: &[Example], tokenizer: Option<&Tokenizer>) -> Result<()> {
    let Some(tokenizer) = tokenizer else { return Ok(()) };
    let has_end =
        |e: &Example| e.ids.iter().zip(&e.trained).any(|(id, on)| *on && tokenizer.is_end_of_generation(*id));
    if tokenizer.end_of_generation().is_empty() || examples.iter().any(has_end) {
        return Ok(());
    }
    Err(Error::input("no end of turn", "no assistant's turn ends with an end-of-turn token that is trained")
        .with_hint("the model would never learn to stop; use a template that writes an end-of-turn token, or name the one it writes (tokenizer.ggml.eot_token_id)"))
}

fn load_file(
    path: &Path,
    encoder: &Encoder<'_>,
    o: &LoadOptions,
    examples: &mut Vec<Example>,
) -> Result<&'static str> {
    if fs::is_dir(path) {
        return Err(Error::input("directory", "a directory, expected a file").in_file(path));
    }
    let extension = extension(path);
    match extension.as_str() {
        _ if is_text(path) => {
            let text = fs::read_text_bounded(path, o.max_line_bytes as u64)?;
            let text = text.strip_prefix('\u{FEFF}').unwrap_or(&text);
            let mut example = encoder.text(text).map_err(|e| e.in_file(path))?;
            example.place = path.display().to_string();
            examples.push(example);
            Ok(text::FORMAT.name)
        }
        "jsonl" | "ndjson" | "json" => load_lines(path, encoder, o, examples),
        other => Err(Error::input("data file", format!("extension {other:?}, expected .jsonl or .txt"))
            .with_hint("unpack or convert the file to JSON lines")
            .in_file(path)),
    }
}

fn extension(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// Whether the whole file is one text.
fn is_text(path: &Path) -> bool {
    ["txt", "md", "text"].contains(&extension(path).as_str())
}

fn load_lines(
    path: &Path,
    encoder: &Encoder<'_>,
    o: &LoadOptions,
    examples: &mut Vec<Example>,
) -> Result<&'static str> {
    let mut lines = fs::Lines::open(path, o.max_line_bytes)?;
    let mut first: Option<&Format> = None;
    while let Some((number, line)) = lines.next_line()? {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("{}:{number}", path.display());
        let object = parse_line(line).map_err(|e| e.at(&place))?;
        let format = detect(&object).map_err(|e| e.at(&place))?;
        let expected = *first.get_or_insert(format);
        if expected.name != format.name {
            let text = format!("a {} line in a file that began with {} lines", format.name, expected.name);
            return Err(Error::input("mixed formats", text)
                .with_hint("put each format in its own file")
                .at(place));
        }
        let mut example = (format.encode)(encoder, &object).map_err(|e| e.at(&place))?;
        example.place = place;
        examples.push(example);
    }
    Ok(first.map_or("", |f| f.name))
}

fn parse_line(line: &str) -> Result<Map<String, Value>> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(Value::Array(_)) => Err(Error::input("json", "a JSON array, expected one object a line")
            .with_hint("write each element of the array on a line of its own")),
        Ok(_) => Err(Error::input("json", "expected a JSON object")),
        Err(e) => Err(Error::input("json", format!("broken JSON at column {}: {e}", e.column()))
            .with_hint("each line must be one whole JSON object")),
    }
}

/// The one format whose keys are all there.
pub fn detect(object: &Map<String, Value>) -> Result<&'static Format> {
    let has = |keys: &[&str]| keys.iter().all(|k| object.contains_key(*k));
    let mut found = FORMATS.iter().filter(|f| has(f.keys));
    match (found.next(), found.next()) {
        (Some(format), None) => Ok(format),
        (Some(a), Some(b)) => {
            let text = format!("the keys fit two formats, {} and {}", a.name, b.name);
            Err(Error::input("mixed formats", text).with_hint("remove the keys of one"))
        }
        _ => {
            let keys: Vec<String> = object.keys().take(8).map(|k| k.chars().take(40).collect()).collect();
            let foreign = FOREIGN.iter().find(|(_, keys)| has(keys));
            let kind = foreign.map_or("of no known format".to_owned(), |(n, _)| format!("of the {n} format"));
            let shapes: Vec<&str> = FORMATS.iter().map(|f| f.shape).collect();
            Err(Error::input("format", format!("an object {kind} (keys: {})", keys.join(", ")))
                .with_hint(format!("known: {}", shapes.join(" | "))))
        }
    }
}

/// The string under `key`. Errors: another type.
fn string<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str> {
    match object.get(key) {
        Some(Value::String(s)) => Ok(s),
        other => Err(Error::input("field", format!("{key:?} is {}, expected a string", type_name(other)))),
    }
}

fn type_name(v: Option<&Value>) -> &'static str {
    match v {
        None => "absent",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(_)) => "an array",
        Some(Value::Object(_)) => "an object",
    }
}
