//! `{"input_ids": [..], "labels": [..]}` (TRL, Axolotl): tokens as they are. Labels are aligned with the ids, -100
//! is not trained; without labels all are trained.

use planish_base::{Error, Result};
use serde_json::{Map, Value};

use super::{Format, type_name};
use crate::chat::finish;
use crate::{Encoder, Example};

pub(super) const FORMAT: Format = Format {
    name: "input_ids",
    shape: "{\"input_ids\": [..], \"labels\": [..]}",
    keys: &["input_ids"],
    has_text: false,
    encode,
};

/// PyTorch's `ignore_index`.
const NOT_TRAINED: i64 = -100;

fn encode(encoder: &Encoder<'_>, object: &Map<String, Value>) -> Result<Example> {
    let limit = encoder.tokenizer.map_or(i64::from(u32::MAX), |t| t.vocab_size() as i64);
    let numbers = integers(object, "input_ids")?;
    let mut ids = Vec::with_capacity(numbers.len());
    for (i, n) in numbers.iter().enumerate() {
        match u32::try_from(*n) {
            Ok(id) if *n < limit => ids.push(id),
            _ => {
                let text = format!("input_ids[{i}] is {n}, expected a token id below {limit}");
                return Err(Error::input("token id", text));
            }
        }
    }
    let trained = match object.get("labels") {
        None | Some(Value::Null) => vec![true; ids.len()],
        Some(_) => labels(&numbers, &integers(object, "labels")?)?,
    };
    finish(ids, trained)
}

fn labels(ids: &[i64], labels: &[i64]) -> Result<Vec<bool>> {
    if labels.len() != ids.len() {
        let text = format!("{} labels for {} input_ids, expected as many", labels.len(), ids.len());
        return Err(Error::input("labels", text));
    }
    let mut trained = Vec::with_capacity(ids.len());
    for (i, (id, label)) in ids.iter().zip(labels).enumerate() {
        if *label != NOT_TRAINED && label != id {
            let text = format!("labels[{i}] is {label}, expected {id} (the id at the same place) or -100");
            return Err(Error::input("labels", text)
                .with_hint("labels are aligned with input_ids; they are shifted inside, not in the data"));
        }
        trained.push(*label != NOT_TRAINED);
    }
    Ok(trained)
}

fn integers(object: &Map<String, Value>, key: &str) -> Result<Vec<i64>> {
    let Some(Value::Array(values)) = object.get(key) else {
        let text = format!("{key:?} is {}, expected an array of integers", type_name(object.get(key)));
        return Err(Error::input("field", text));
    };
    let integer = |(i, v): (usize, &Value)| {
        v.as_i64().ok_or_else(|| {
            let text = format!("{key}[{i}] is {}, expected an integer", type_name(Some(v)));
            Error::input("field", text)
        })
    };
    values.iter().enumerate().map(integer).collect()
}
