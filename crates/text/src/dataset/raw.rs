//! The texts of data files as they are, for a tokenizer that is to be learned from them.

use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_store::fs;
use serde_json::{Map, Value};

use super::{LoadOptions, completion, detect, is_text, parse_line, text, tokens};

/// Calls `f` with every text of the files that [`super::load`] would read: whole text files, and of JSON lines the text,
/// prompt and completion, or contents of messages.
///
/// # Errors
/// `no text` for token ids; those of reading files and lines; those of `f`.
pub fn each_text(paths: &[PathBuf], o: &LoadOptions, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    for path in paths {
        if is_text(path) {
            f(&fs::read_text_bounded(path, o.max_line_bytes as u64)?)?;
            continue;
        }
        let mut lines = fs::Lines::open(path, o.max_line_bytes)?;
        while let Some((number, line)) = lines.next_line()? {
            if !line.trim().is_empty() {
                let object = parse_line(line);
                object
                    .and_then(|o| of_object(&o, f))
                    .map_err(|e| e.at(format!("{}:{number}", path.display())))?;
            }
        }
    }
    Ok(())
}

fn of_object(object: &Map<String, Value>, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let format = detect(object)?;
    let keys: &[&str] = match format.name {
        name if name == tokens::FORMAT.name => {
            return Err(Error::input("no text", "token ids, of which no tokenizer can be learned")
                .with_hint("give --tokenizer, or --vocab-size for a model without one"));
        }
        name if name == text::FORMAT.name || name == completion::FORMAT.name => format.keys,
        _ => &["messages"],
    };
    keys.iter().filter_map(|key| object.get(*key)).try_for_each(|value| strings(value, f))
}

/// Every string in a value but for the names of roles, which the template writes in its own way.
fn strings(value: &Value, f: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    match value {
        Value::String(s) => f(s),
        Value::Array(values) => values.iter().try_for_each(|v| strings(v, f)),
        Value::Object(o) => {
            o.iter().filter(|(k, _)| *k == "content" || *k == "text").try_for_each(|(_, v)| strings(v, f))
        }
        _ => Ok(()),
    }
}
