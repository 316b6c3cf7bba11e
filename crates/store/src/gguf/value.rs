//! Metadata values: the types of the format, borrowed values and arrays, owned values for the writer.

use planish_base::{Error, Result};

use super::cursor::fixed;

/// The type number of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this number, or `None` for a number the format does not have.
    pub fn from_number(number: u32) -> Option<ValueType> {
        use ValueType::*;
        const ALL: [ValueType; 13] = [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64];
        ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The name, as messages print it.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::Str => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes of a value of this type; `None` for strings and arrays.
    pub(crate) fn width(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Str | ValueType::Array => None,
        }
    }
}

/// A metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Decodes a scalar or a string's content; `bytes` has been checked.
    pub(crate) fn decode(ty: ValueType, bytes: &'a [u8]) -> Value<'a> {
        match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(fixed(bytes))),
            ValueType::I8 => Value::I8(i8::from_le_bytes(fixed(bytes))),
            ValueType::U16 => Value::U16(u16::from_le_bytes(fixed(bytes))),
            ValueType::I16 => Value::I16(i16::from_le_bytes(fixed(bytes))),
            ValueType::U32 => Value::U32(u32::from_le_bytes(fixed(bytes))),
            ValueType::I32 => Value::I32(i32::from_le_bytes(fixed(bytes))),
            ValueType::F32 => Value::F32(f32::from_le_bytes(fixed(bytes))),
            ValueType::Bool => Value::Bool(fixed::<1>(bytes) != [0]),
            // Checked at open: only a file that somebody rewrites while it is mapped can fail here.
            ValueType::Str | ValueType::Array => Value::Str(str::from_utf8(bytes).unwrap_or_default()),
            ValueType::U64 => Value::U64(u64::from_le_bytes(fixed(bytes))),
            ValueType::I64 => Value::I64(i64::from_le_bytes(fixed(bytes))),
            ValueType::F64 => Value::F64(f64::from_le_bytes(fixed(bytes))),
        }
    }

    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The name of the type, with the element type of an array: `u32`, `array of string`.
    pub fn type_name(&self) -> String {
        match self {
            Value::Array(a) => format!("array of {}", a.element_type().name()),
            other => other.value_type().name().to_string(),
        }
    }

    /// The value of any integer type.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }
}

/// An array of scalars or strings that stays in the file and is decoded element by element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    pub(crate) ty: ValueType,
    pub(crate) count: u64,
    pub(crate) bytes: &'a [u8],
    /// Strings have 32-bit lengths (version 1).
    pub(crate) narrow: bool,
}

impl<'a> Array<'a> {
    /// The type of the elements: never [`ValueType::Array`].
    pub fn element_type(&self) -> ValueType {
        self.ty
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements as they stand in the file: little endian, strings with their length before them.
    pub fn raw(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements { ty: self.ty, rest: self.bytes, narrow: self.narrow }
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    ty: ValueType,
    rest: &'a [u8],
    narrow: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let width = match self.ty.width() {
            Some(width) => width,
            None if self.narrow => {
                let (len, rest) = self.rest.split_first_chunk::<4>()?;
                self.rest = rest;
                usize::try_from(u32::from_le_bytes(*len)).ok()?
            }
            None => {
                let (len, rest) = self.rest.split_first_chunk::<8>()?;
                self.rest = rest;
                usize::try_from(u64::from_le_bytes(*len)).ok()?
            }
        };
        let (element, rest) = self.rest.split_at_checked(width)?;
        if self.ty != ValueType::Str && element.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(Value::decode(self.ty, element))
    }
}

/// A metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    U32s(Vec<u32>),
    U8s(Vec<u8>),
    Bools(Vec<bool>),
}

impl From<&str> for OwnedValue {
    fn from(v: &str) -> Self {
        OwnedValue::Str(v.to_string())
    }
}

impl OwnedValue {
    /// The type number and the bytes of the value in version 3.
    pub(crate) fn encode(&self) -> (ValueType, Vec<u8>) {
        fn array<T>(ty: ValueType, items: &[T], put: impl Fn(&T, &mut Vec<u8>)) -> (ValueType, Vec<u8>) {
            let mut out = Vec::new();
            out.extend((ty as u32).to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            for item in items {
                put(item, &mut out);
            }
            (ValueType::Array, out)
        }
        match self {
            OwnedValue::U8(v) => (ValueType::U8, v.to_le_bytes().to_vec()),
            OwnedValue::I8(v) => (ValueType::I8, v.to_le_bytes().to_vec()),
            OwnedValue::U16(v) => (ValueType::U16, v.to_le_bytes().to_vec()),
            OwnedValue::I16(v) => (ValueType::I16, v.to_le_bytes().to_vec()),
            OwnedValue::U32(v) => (ValueType::U32, v.to_le_bytes().to_vec()),
            OwnedValue::I32(v) => (ValueType::I32, v.to_le_bytes().to_vec()),
            OwnedValue::F32(v) => (ValueType::F32, v.to_le_bytes().to_vec()),
            OwnedValue::Bool(v) => (ValueType::Bool, vec![u8::from(*v)]),
            OwnedValue::U64(v) => (ValueType::U64, v.to_le_bytes().to_vec()),
            OwnedValue::I64(v) => (ValueType::I64, v.to_le_bytes().to_vec()),
            OwnedValue::F64(v) => (ValueType::F64, v.to_le_bytes().to_vec()),
            OwnedValue::Str(v) => {
                let mut out = Vec::new();
                put_string(v, &mut out);
                (ValueType::Str, out)
            }
            OwnedValue::Strings(v) => array(ValueType::Str, v, |s, out| put_string(s, out)),
            OwnedValue::F32s(v) => array(ValueType::F32, v, |x, out| out.extend(x.to_le_bytes())),
            OwnedValue::I32s(v) => array(ValueType::I32, v, |x, out| out.extend(x.to_le_bytes())),
            OwnedValue::U32s(v) => array(ValueType::U32, v, |x, out| out.extend(x.to_le_bytes())),
            OwnedValue::U8s(v) => array(ValueType::U8, v, |x, out| out.push(*x)),
            OwnedValue::Bools(v) => array(ValueType::Bool, v, |x, out| out.push(u8::from(*x))),
        }
    }
}

/// Appends a string of version 3: 64-bit length, bytes.
pub(crate) fn put_string(s: &str, out: &mut Vec<u8>) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// A key that the format allows: not empty, not longer than its limit, UTF-8, no control characters. Upper case and
/// blanks occur in real files and are let through, although the format's description asks for snake case.
pub(crate) fn check_key(key: &[u8]) -> Result<&str> {
    let bad = |why: &str| Err(Error::input("key", why));
    if key.is_empty() {
        return bad("the key is empty");
    }
    if key.len() as u64 > super::limits::MAX_KEY_BYTES {
        return bad(&format!("the key has {} bytes, at most 65535 are allowed", key.len()));
    }
    match str::from_utf8(key) {
        Ok(k) if k.chars().any(char::is_control) => bad(&format!("the key {k:?} has a control character")),
        Ok(k) => Ok(k),
        Err(_) => bad(&format!("the key {:?} is not UTF-8", String::from_utf8_lossy(key))),
    }
}
