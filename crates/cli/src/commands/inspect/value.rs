//! Metadata values, for people and as JSON; long ones shortened.

use planish_store::gguf::Value;
use serde_json::json;

/// Elements of an array that are shown.
const ELEMENTS: usize = 6;
/// Characters of a string that are shown to people.
const CHARS: usize = 80;

/// A value for people: one line, nothing a terminal would obey.
pub fn text(value: &Value) -> String {
    match value {
        Value::Str(s) => quoted(s),
        Value::Array(array) => {
            let mut shown: Vec<String> = array.iter().take(ELEMENTS).map(|v| text(&v)).collect();
            if array.len() > ELEMENTS {
                shown.push("..".to_owned());
            }
            format!("[{}] {}", array.len(), shown.join(", ")).trim_end().to_owned()
        }
        Value::Bool(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        other => other.as_integer().unwrap_or_default().to_string(),
    }
}

/// A string in quotes, cut.
pub fn quoted(s: &str) -> String {
    let mut shown: String = s.chars().take(CHARS).flat_map(char::escape_debug).collect();
    if s.chars().nth(CHARS).is_some() {
        shown += &format!("\".. ({} bytes)", s.len());
        return format!("\"{shown}");
    }
    format!("\"{shown}\"")
}

/// `{"type", "value"}`, of an array also `"length"` and only its first elements.
pub fn object(value: &Value) -> serde_json::Value {
    let ty = value.type_name();
    match value {
        Value::Array(array) => {
            let shown: Vec<serde_json::Value> = array.iter().take(ELEMENTS).map(|v| scalar(&v)).collect();
            json!({"type": ty, "length": array.len(), "value": shown})
        }
        other => json!({"type": ty, "value": scalar(other)}),
    }
}

fn scalar(value: &Value) -> serde_json::Value {
    match *value {
        Value::Str(s) => json!(s),
        Value::Bool(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::F32(v) => float(v),
        Value::F64(v) => json!(v),
        // All that are left but u64 fit.
        ref other => json!(other.as_integer().and_then(|v| i64::try_from(v).ok())),
    }
}

/// The shortest number that is this f32, as 0.1 and not 0.10000000149; null for what JSON has no number for.
fn float(v: f32) -> serde_json::Value {
    json!(v.to_string().parse::<f64>().ok().filter(|v| v.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_cut_and_escaped() {
        assert_eq!(quoted("a\u{1b}\n\""), r#""a\u{1b}\n\"""#);
        let long = "x".repeat(81);
        assert!(quoted(&long).ends_with("x\".. (81 bytes)"));
        assert_eq!(float(0.1).to_string(), "0.1");
        assert!(float(f32::NAN).is_null());
    }
}
