//! Data files to examples. A format is one file of this folder and one line of [`FORMATS`].

mod chat;
mod completion;
mod text;
mod tokens;

use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_store::{Bytes, fs};
use serde_json::{Map, Value};

use crate::cache::{Cache, Encoded};
use crate::source::{Shape, Source};
use crate::{ChatTemplate, Encoder, Example, LengthPolicy, Report, Tokenizer, corpus, length};

/// A shape of JSON objects, one a line.
pub struct Format {
    /// Short name.
    pub name: &'static str,
    /// The shape, for help and error messages.
    pub shape: &'static str,
    /// All of these keys are there.
    pub keys: &'static [&'static str],
    /// Under these keys is text, of which a tokenizer can be learned; else token ids.
    pub has_text: bool,
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
    /// Longest line, in bytes.
    pub max_line_bytes: usize,
    /// Longest text file, and longest standard input, in bytes.
    pub max_text_bytes: usize,
    /// The model's vocabulary, where it is known: ids of a corpus of tokens are below it.
    pub vocab: Option<usize>,
    /// The directory where tokens are kept, and looked for, from one time to the next.
    pub cache: Option<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context: 1024,
            policy: LengthPolicy::Error,
            specials_in_content: false,
            max_line_bytes: 64 << 20,
            max_text_bytes: 1 << 30,
            vocab: None,
            cache: None,
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
    /// What standard input held, where it was one of the sources: it cannot be read again.
    pub stdin: Option<Vec<u8>>,
    /// What the user should know, and that ends nothing: why the cache was not used.
    pub warnings: Vec<String>,
}

/// Reads files: `.jsonl` (`.ndjson`, `.json`) with one object a line, in one of [`FORMATS`] all through a file;
/// `.txt` (`.md`, `.text`), each one example of text; `.bin` and `.toyc`, each a corpus of token ids, which is cut by
/// the context whatever the policy. A path may be a pattern (`data/*.txt`), or `-` for standard input: JSON lines if
/// it begins with `{`, else text. Blank lines are skipped.
///
/// Errors, each with path and line: a line that is not an object of a known shape; a file that mixes formats or is
/// empty; an example that cannot be encoded or has nothing to train; conversations that never train an end of turn;
/// examples longer than the context, as the policy says; a corpus that is broken or of another vocabulary.
pub fn load(
    paths: &[PathBuf],
    tokenizer: Option<&Tokenizer>,
    template: Option<&ChatTemplate>,
    o: &LoadOptions,
) -> Result<Dataset> {
    if paths.is_empty() {
        return Err(Error::usage("no data", "no data file is given"));
    }
    length::check_context(o.context)?;
    let encoder = Encoder { tokenizer, template, specials_in_content: o.specials_in_content };
    let (mut examples, mut stdin, mut warnings, mut cut) = (Vec::new(), None, Vec::new(), 0);
    for source in Source::all(paths, o.max_text_bytes)? {
        let found = encoded(&source, &encoder, o, &mut warnings)?;
        if found.examples.is_empty() {
            return Err(Error::input("empty file", "the file holds no example").in_file(source.path()));
        }
        cut += usize::from(source.shape == Shape::Tokens && found.examples.len() > 1);
        let before = examples.len();
        examples.extend(found.examples.into_iter().map(|(n, e)| Example { place: source.place(n), ..e }));
        if found.format == chat::FORMAT.name {
            check_end_of_turn(&examples[before..], tokenizer).map_err(|e| e.in_file(source.path()))?;
        }
        stdin = stdin.or(source.into_memory());
    }
    let mut dataset = fitted(examples, tokenizer, o)?;
    dataset.report.split += cut;
    Ok(Dataset { stdin, warnings, ..dataset })
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
    Ok(Dataset { examples, report, stdin: None, warnings: Vec::new() })
}

/// The examples of a source: those of the cache, else made now and kept.
fn encoded(
    source: &Source,
    encoder: &Encoder<'_>,
    o: &LoadOptions,
    warnings: &mut Vec<String>,
) -> Result<Encoded> {
    let cache = Cache::of(source, encoder, o)?;
    let unused = |e: &Error| format!("the cache is not used for {}: {e}", source.path().display());
    match cache.as_ref().map(Cache::read) {
        Some(Ok(Some(found))) => return Ok(found),
        Some(Err(e)) => warnings.push(format!("{}; remove it to have it written again", unused(&e))),
        None | Some(Ok(None)) => {}
    }
    let made = encode(source, encoder, o)?;
    if let Some(cache) = cache.filter(|c| !made.examples.is_empty() && !fs::exists(c.path()))
        && let Err(e) = cache.write(source, &made)
    {
        warnings.push(unused(&e));
    }
    Ok(made)
}

fn encode(source: &Source, encoder: &Encoder<'_>, o: &LoadOptions) -> Result<Encoded> {
    let (format, examples) = match source.shape {
        Shape::Lines => return encode_lines(source, encoder, o.max_line_bytes),
        Shape::Text => {
            let text = source.text(o.max_text_bytes)?;
            let example = encoder.text(&text).map_err(|e| e.in_file(source.path()))?;
            (text::FORMAT.name, vec![(0, example)])
        }
        Shape::Tokens => {
            let bytes = Bytes::map(source.path())?;
            let pieces = corpus::examples(&bytes, o.vocab, o.context);
            let pieces = pieces.map_err(|e| e.in_file(source.path()))?.into_iter();
            (tokens::FORMAT.name, pieces.map(|(first, e)| (first as u64, e)).collect())
        }
    };
    Ok(Encoded { format: format.to_owned(), examples })
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

fn encode_lines(source: &Source, encoder: &Encoder<'_>, limit: usize) -> Result<Encoded> {
    let (mut first, mut examples): (Option<&Format>, _) = (None, Vec::new());
    source.lines(limit, |number, line| {
        if line.trim().is_empty() {
            return Ok(());
        }
        let placed = |e: Error| e.at(source.place(number));
        let object = parse_line(line).map_err(placed)?;
        let format = detect(&object).map_err(placed)?;
        let expected = *first.get_or_insert(format);
        if expected.name != format.name {
            let text = format!("a {} line in a file that began with {} lines", format.name, expected.name);
            let error = Error::input("mixed formats", text).with_hint("put each format in its own file");
            return Err(placed(error));
        }
        examples.push((number, (format.encode)(encoder, &object).map_err(placed)?));
        Ok(())
    })?;
    Ok(Encoded { format: first.map_or("", |f| f.name).to_owned(), examples })
}

pub(crate) fn parse_line(line: &str) -> Result<Map<String, Value>> {
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
