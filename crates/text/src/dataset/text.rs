//! `{"text": ".."}`: every token is trained.

use planish_base::Result;
use serde_json::{Map, Value};

use super::{Format, string};
use crate::{Encoder, Example};

pub(super) const FORMAT: Format =
    Format { name: "text", shape: "{\"text\": \"..\"}", keys: &["text"], has_text: true, encode };

fn encode(encoder: &Encoder<'_>, object: &Map<String, Value>) -> Result<Example> {
    encoder.text(string(object, "text")?)
}
