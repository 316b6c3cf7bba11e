//! The key-value pairs of a GGUF file.

use std::ops::Range;
use std::sync::Arc;

use planish_base::{Error, Result};

use super::value::{Array, Value, ValueType};
use crate::Bytes;

/// Ordered key-value pairs. They stay in the file's bytes and are decoded when asked for; a clone is cheap.
///
/// The typed getters give `Ok(None)` when the key is absent, and the error `key type`, which names the key, the type
/// expected and the type found, when its value is of another type.
#[derive(Clone, Debug)]
pub struct Metadata(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: Bytes,
    /// Version 1: strings within arrays have 32-bit lengths.
    narrow: bool,
    /// File order.
    entries: Vec<Entry>,
    /// Indices of `entries`, ascending by key.
    by_key: Vec<u32>,
}

/// Where a key and its value lie in the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Range<usize>,
    pub(crate) ty: ValueType,
    /// A scalar's bytes, a string's content, or an array's elements.
    pub(crate) value: Range<usize>,
    /// Of an array; otherwise unused.
    pub(crate) element: ValueType,
    pub(crate) count: u64,
}

impl Metadata {
    /// Entries whose ranges have been checked against `bytes`; refuses a key that occurs twice.
    pub(crate) fn new(bytes: Bytes, narrow: bool, entries: Vec<Entry>) -> Result<Metadata> {
        let mut by_key: Vec<u32> = (0..).take(entries.len()).collect();
        let key = |i: &u32| entries.get(*i as usize).and_then(|e| bytes.get(e.key.clone()));
        by_key.sort_by(|a, b| key(a).cmp(&key(b)).then(a.cmp(b)));
        for (a, b) in by_key.iter().zip(by_key.iter().skip(1)) {
            if key(a) == key(b) {
                let at = entries.get(*b as usize).map_or(0, |e| e.key.start);
                let name = String::from_utf8_lossy(key(b).unwrap_or_default()).into_owned();
                let message = format!("byte {at}: the metadata key `{name}` occurs twice");
                return Err(Error::input("duplicate key", message));
            }
        }
        Ok(Metadata(Arc::new(Inner { bytes, narrow, entries, by_key })))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.0.entries.iter().map(|e| (self.key(e), self.value(e)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.find(key).map(|e| self.value(e))
    }

    /// Whether `key` is there, with a value of any type.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "string", |v| match v {
            Value::Str(s) => Some(s),
            _ => None,
        })
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "bool", |v| match v {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// An `f32`.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "f32", |v| match v {
            Value::F32(x) => Some(x),
            _ => None,
        })
    }

    /// An integer of any type whose value fits a `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "u32", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// An integer of any type whose value fits a `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "u64", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.elements(key, "string", |v| match v {
            Value::Str(s) => Some(s),
            _ => None,
        })
    }

    /// An array of `f32`.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.elements(key, "f32", |v| match v {
            Value::F32(x) => Some(x),
            _ => None,
        })
    }

    /// An array of any integer type whose elements fit an `i32`.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.elements(key, "i32", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// An array of any integer type whose elements fit a `u32`.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.elements(key, "u32", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// An array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.elements(key, "bool", |v| match v {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// Number of elements of an array; `None` when the key is absent or not an array.
    pub fn array_len(&self, key: &str) -> Option<usize> {
        match self.get(key)? {
            Value::Array(a) => Some(a.len()),
            _ => None,
        }
    }

    /// [`Metadata::str`], or the error `missing key`.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.str(key)?.ok_or_else(|| missing(key, "string"))
    }

    /// [`Metadata::u32`], or the error `missing key`.
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        self.u32(key)?.ok_or_else(|| missing(key, "u32"))
    }

    /// [`Metadata::f32`], or the error `missing key`.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        self.f32(key)?.ok_or_else(|| missing(key, "f32"))
    }

    /// Where the key stands in the file, in bytes from its start.
    pub fn offset_of(&self, key: &str) -> Option<usize> {
        self.find(key).map(|e| e.key.start)
    }

    /// The storage, for the writer's byte-for-byte copies.
    pub(crate) fn storage(&self) -> &Bytes {
        &self.0.bytes
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.entries.iter().map(|e| (self.key(e), e))
    }

    pub(crate) fn narrow(&self) -> bool {
        self.0.narrow
    }

    pub(crate) fn value(&self, e: &Entry) -> Value<'_> {
        let bytes = self.slice(&e.value);
        if e.ty == ValueType::Array {
            return Value::Array(Array { ty: e.element, count: e.count, bytes, narrow: self.0.narrow });
        }
        Value::decode(e.ty, bytes)
    }

    fn key(&self, e: &Entry) -> &str {
        // Checked at open, as the values are.
        str::from_utf8(self.slice(&e.key)).unwrap_or_default()
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.0.bytes.get(range.clone()).unwrap_or_default()
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let entry = |i: u32| self.0.entries.get(i as usize);
        let found = self
            .0
            .by_key
            .binary_search_by(|&i| entry(i).map(|e| self.slice(&e.key)).cmp(&Some(key.as_bytes())))
            .ok()?;
        entry(*self.0.by_key.get(found)?)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong_type(key, expected, value))
    }

    fn elements<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(array) = value else {
            return Err(wrong_type(key, &format!("array of {expected}"), value));
        };
        // The count was checked against the file's bytes at open.
        let mut out = Vec::with_capacity(array.len());
        for (i, element) in array.iter().enumerate() {
            let Some(element) = read(element) else {
                let place = format!("{key}[{i}]");
                return Err(wrong_type(&place, expected, element));
            };
            out.push(element);
        }
        // Only a file rewritten while it is mapped can have lost elements since it was opened.
        if out.len() != array.len() {
            return Err(wrong_type(key, &format!("array of {expected}"), value));
        }
        Ok(Some(out))
    }
}

fn missing(key: &str, expected: &str) -> Error {
    Error::input("missing key", format!("the metadata key `{key}` ({expected}) is missing"))
}

fn wrong_type(key: &str, expected: &str, value: Value<'_>) -> Error {
    let got = match value.as_integer() {
        Some(i) => format!("{} {i}", value.type_name()),
        None => value.type_name(),
    };
    Error::input("key type", format!("the metadata key `{key}` is {got}, expected {expected}"))
}
