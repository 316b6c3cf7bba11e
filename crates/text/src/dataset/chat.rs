//! `{"messages": [{"role", "content", ..}], "tools": [..]}` (OpenAI, TRL, mlx, Axolotl).

use planish_base::{Error, Result};
use serde_json::{Map, Value};

use super::{Format, type_name};
use crate::chat::ROLES;
use crate::{Encoder, Example, Message, Turn};

pub(super) const FORMAT: Format = Format {
    name: "chat",
    shape: "{\"messages\": [{\"role\": .., \"content\": ..}]}",
    keys: &["messages"],
    has_text: true,
    encode,
};

fn encode(encoder: &Encoder<'_>, object: &Map<String, Value>) -> Result<Example> {
    let Some(Value::Array(messages)) = object.get("messages") else {
        let got = type_name(object.get("messages"));
        return Err(Error::input("field", format!("\"messages\" is {got}, expected an array")));
    };
    let turns = messages.iter().enumerate().map(|(i, m)| turn(m).map_err(|e| e.at(format!("message {i}"))));
    let turns = turns.collect::<Result<Vec<Turn>>>()?;
    let tools = match object.get("tools") {
        None | Some(Value::Null) => None,
        Some(tools @ Value::Array(_)) => Some(tools),
        other => {
            let text = format!("\"tools\" is {}, expected an array", type_name(other));
            return Err(Error::input("field", text));
        }
    };
    encoder.chat(&turns, tools)
}

fn turn(value: &Value) -> Result<Turn> {
    let Value::Object(fields) = value else {
        return Err(Error::input("field", format!("{}, expected an object", type_name(Some(value)))));
    };
    let mut extra = fields.clone();
    let role = match extra.shift_remove("role") {
        Some(Value::String(role)) => role,
        other => {
            let text = format!("\"role\" is {}, expected a string", type_name(other.as_ref()));
            return Err(Error::input("field", text));
        }
    };
    if !ROLES.contains(&role.as_str()) {
        let short: String = role.chars().take(40).collect();
        return Err(Error::input("role", format!("unknown role {short:?}"))
            .with_hint(format!("known roles: {}", ROLES.join(", "))));
    }
    let has_calls = extra.contains_key("tool_calls");
    let content = content(extra.shift_remove("content").as_ref(), has_calls)?;
    let train = trained(extra.shift_remove("train"), extra.shift_remove("weight"))?;
    Ok(Turn { message: Message { role, content, extra }, train })
}

/// A string, or the texts of a list of `{"type": "text", "text": ..}`; nothing where the message calls tools.
fn content(value: Option<&Value>, has_calls: bool) -> Result<String> {
    match value {
        Some(Value::String(s)) => Ok(s.clone()),
        None | Some(Value::Null) if has_calls => Ok(String::new()),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match (part.get("type").and_then(Value::as_str), part.get("text")) {
                (Some("text"), Some(Value::String(s))) => Ok(s.as_str()),
                (kind, _) => {
                    let kind = kind.unwrap_or("none");
                    Err(Error::input(
                        "content",
                        format!("a content part of type {kind:?}, expected \"text\""),
                    ))
                }
            })
            .collect(),
        other => {
            let text = format!("\"content\" is {}, expected a string", type_name(other));
            Err(Error::input("field", text))
        }
    }
}

/// `"train": false` or `"weight": 0` takes a message out of the loss; nothing in between exists.
fn trained(train: Option<Value>, weight: Option<Value>) -> Result<bool> {
    let train = match train {
        None | Some(Value::Null) => true,
        Some(Value::Bool(b)) => b,
        other => {
            let text = format!("\"train\" is {}, expected true or false", type_name(other.as_ref()));
            return Err(Error::input("field", text));
        }
    };
    let weight = match weight {
        None | Some(Value::Null) => true,
        Some(w) => match w.as_f64() {
            Some(0.0) => false,
            Some(1.0) => true,
            _ => return Err(Error::input("field", format!("\"weight\" is {w}, expected 0 or 1"))),
        },
    };
    Ok(train && weight)
}
