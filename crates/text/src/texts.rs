//! The texts of data as they are, for a tokenizer that is to be learned from them.

use std::path::PathBuf;

use planish_base::{Error, Result};
use serde_json::{Map, Value};

use crate::dataset::{LoadOptions, detect, parse_line};
use crate::source::{Shape, Source, is_stdin};

/// Calls `f` with every text of the sources that [`crate::load`] would read: whole text files, and of JSON lines the
/// text, prompt and completion, or contents of messages.
///
/// # Errors
/// `no text` for token ids; `stdin` for standard input, which could not be read again as examples; those of reading
/// files and lines; those of `f`.
pub fn each_text(paths: &[PathBuf], o: &LoadOptions, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    if paths.iter().any(|p| is_stdin(p)) {
        let message = "a tokenizer cannot be learned from standard input, which can be read once";
        return Err(Error::usage("stdin", message).with_hint("give --tokenizer, or name a file"));
    }
    for source in Source::all(paths, o.max_text_bytes)? {
        match source.shape {
            Shape::Text => f(&source.text(o.max_text_bytes)?)?,
            Shape::Tokens => return Err(no_text().in_file(source.path())),
            Shape::Lines => source.lines(o.max_line_bytes, |number, line| {
                if line.trim().is_empty() {
                    return Ok(());
                }
                parse_line(line).and_then(|o| of_object(&o, f)).map_err(|e| e.at(source.place(number)))
            })?,
        }
    }
    Ok(())
}

fn no_text() -> Error {
    Error::input("no text", "token ids, of which no tokenizer can be learned")
        .with_hint("give --tokenizer, or --vocab-size for a model without one")
}

fn of_object(object: &Map<String, Value>, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let format = detect(object)?;
    if !format.has_text {
        return Err(no_text());
    }
    format.keys.iter().filter_map(|key| object.get(*key)).try_for_each(|value| strings(value, f))
}

/// Every string in a value but for the names of roles, which the template writes in its own way.
fn strings(value: &Value, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    match value {
        Value::String(s) => f(s),
        Value::Array(values) => values.iter().try_for_each(|v| strings(v, f)),
        Value::Object(o) => {
            let texts = o.iter().filter(|(k, _)| *k == "content" || *k == "text");
            texts.map(|(_, v)| v).try_for_each(|v| strings(v, f))
        }
        _ => Ok(()),
    }
}
