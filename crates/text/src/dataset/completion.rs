//! `{"prompt": "..", "completion": ".."}` (TRL, mlx): the prompt is read, the completion trained.

use planish_base::{Error, Result};
use serde_json::{Map, Value};

use super::{Format, string};
use crate::{Encoder, Example};

pub(super) const FORMAT: Format = Format {
    name: "prompt/completion",
    shape: "{\"prompt\": \"..\", \"completion\": \"..\"}",
    keys: &["prompt", "completion"],
    has_text: true,
    encode,
};

fn encode(encoder: &Encoder<'_>, object: &Map<String, Value>) -> Result<Example> {
    // A "label" makes it a KTO record, half of which are answers not to give.
    if object.contains_key("label") {
        return Err(Error::input("format", "an object of the KTO format (prompt, completion, label)")
            .with_hint("keep the records whose label is true, without the key"));
    }
    let (prompt, completion) = (string(object, "prompt")?, string(object, "completion")?);
    if completion.is_empty() {
        return Err(Error::input("no trained tokens", "\"completion\" is empty"));
    }
    encoder.completion(prompt, completion)
}
