//! The reader: header and metadata. Descriptors are in `tensors`.

use std::ops::Range;

use planish_base::{Error, Result};

use super::cursor::Cursor;
use super::limits::{
    DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_HEADER_BYTES, MAX_KEYS, MAX_STRING_BYTES, MAX_STRINGS, MAX_TENSORS,
    MIN_ALIGNMENT,
};
use super::metadata::{Entry, Metadata};
use super::value::{Value, ValueType, check_key};
use super::{Gguf, magic, tensors};
use crate::Bytes;

/// Reads and checks a whole file.
pub(crate) fn read(bytes: Bytes) -> Result<Gguf> {
    let mut cursor = Cursor::new(&bytes);
    let header = read_header(&mut cursor)?;
    let mut entries = Vec::with_capacity(header.keys);
    for _ in 0..header.keys {
        entries.push(read_entry(&mut cursor)?);
        check_header_size(&cursor)?;
    }
    let metadata = Metadata::new(bytes.clone(), header.version == 1, entries)?;
    let alignment = alignment(&metadata)?;
    let directory = tensors::read(&mut cursor, header.tensors, alignment, bytes.len() as u64)?;
    let tensors::Directory { tensors, by_name, data_start } = directory;
    Ok(Gguf { bytes, version: header.version, alignment, metadata, tensors, by_name, data_start })
}

struct Header {
    version: u32,
    tensors: usize,
    keys: usize,
}

fn read_header(cursor: &mut Cursor) -> Result<Header> {
    let mut peek = cursor.clone();
    let magic = cursor.take(4, "the magic")?;
    if magic != b"GGUF" {
        let start = peek.take(peek.remaining(), "the file")?;
        let shown = magic.escape_ascii();
        let error = Error::input(
            "magic",
            format!("byte 0: the magic is \"{shown}\", expected \"GGUF\": not a GGUF file"),
        );
        return Err(match magic::guess(start) {
            Some(hint) => error.with_hint(hint),
            None => error.with_hint("planish opens GGUF files and Hugging Face model directories"),
        });
    }
    let version = cursor.u32("the version")?;
    if !(1..=3).contains(&version) {
        let error = Error::input("version", format!("byte 4: version {version}, expected 1, 2 or 3"));
        return Err(if (1..=3).contains(&version.swap_bytes()) {
            error.with_hint("this is a big-endian file; convert it with gguf-py's gguf_convert_endian")
        } else {
            error.with_hint("the file may be damaged, or newer than this program")
        });
    }
    cursor.set_narrow(version == 1);
    let at = cursor.at();
    let tensors = cursor.count("the number of tensors")?;
    let keys_at = cursor.at();
    let keys = cursor.count("the number of metadata entries")?;
    // The least an entry takes: a key of one byte, a type, a value of one byte; a descriptor: a name of one byte, the
    // number of dimensions, one dimension, a type, an offset.
    let entry = cursor.count_width().saturating_add(6);
    let descriptor = cursor.count_width().saturating_mul(2).saturating_add(17);
    cursor.check_count(keys_at, "metadata entries", keys, entry)?;
    cursor.check_count(at, "tensors", tensors, descriptor)?;
    Ok(Header {
        version,
        tensors: within("tensors", at, tensors, MAX_TENSORS)?,
        keys: within("metadata entries", keys_at, keys, MAX_KEYS)?,
    })
}

/// The count as a `usize` when it is within its limit, else `count`.
fn within(what: &str, at: usize, count: u64, limit: u64) -> Result<usize> {
    match usize::try_from(count) {
        Ok(n) if count <= limit => Ok(n),
        _ => Err(Error::input("count", format!("byte {at}: {count} {what}, at most {limit} are allowed"))),
    }
}

/// Bounds the work that a header can ask for.
pub(crate) fn check_header_size(cursor: &Cursor) -> Result<()> {
    if cursor.at() as u64 > MAX_HEADER_BYTES {
        let message =
            format!("byte {}: the header is longer than the {MAX_HEADER_BYTES} bytes allowed", cursor.at());
        return Err(Error::input("limit", message));
    }
    Ok(())
}

fn read_entry(cursor: &mut Cursor) -> Result<Entry> {
    let at = cursor.at();
    let key_bytes = cursor.string("a metadata key")?;
    let key = cursor.at().saturating_sub(key_bytes.len())..cursor.at();
    let name = check_key(key_bytes).map_err(|e| e.at(format_args!("byte {at}")))?;
    let ty = value_type(cursor, name)?;
    if ty == ValueType::Array {
        return read_array(cursor, key, name);
    }
    let value = read_value(cursor, ty, name)?;
    Ok(Entry { key, ty, value, element: ty, count: 1 })
}

fn value_type(cursor: &mut Cursor, name: &str) -> Result<ValueType> {
    let at = cursor.at();
    let number = cursor.u32("a value type")?;
    ValueType::from_number(number).ok_or_else(|| {
        let message =
            format!("byte {at}: the metadata key `{name}` has value type {number}, expected 0 to 12");
        Error::input("value type", message)
    })
}

/// Steps over a scalar or string and gives the range of its bytes.
fn read_value(cursor: &mut Cursor, ty: ValueType, name: &str) -> Result<Range<usize>> {
    let at = cursor.at();
    let Some(width) = ty.width() else { return read_string(cursor, name) };
    let bytes = cursor.take(width as u64, "a metadata value")?;
    if ty == ValueType::Bool {
        check_bools(bytes, at, name)?;
    }
    Ok(at..cursor.at())
}

fn read_string(cursor: &mut Cursor, name: &str) -> Result<Range<usize>> {
    let at = cursor.at();
    let bytes = cursor.string("a string")?;
    let len = bytes.len();
    if len as u64 > MAX_STRING_BYTES {
        let message = format!(
            "byte {at}: a string of the metadata key `{name}` has {len} bytes, at most {MAX_STRING_BYTES} are allowed"
        );
        return Err(Error::input("limit", message));
    }
    if let Err(e) = str::from_utf8(bytes) {
        let message = format!("byte {at}: a string of the metadata key `{name}` is not UTF-8: {e}");
        return Err(Error::input("utf-8", message));
    }
    Ok(cursor.at().saturating_sub(len)..cursor.at())
}

fn check_bools(bytes: &[u8], at: usize, name: &str) -> Result<()> {
    let Some(i) = bytes.iter().position(|b| *b > 1) else { return Ok(()) };
    let at = at.saturating_add(i);
    let got = bytes.get(i).copied().unwrap_or_default();
    let message = format!("byte {at}: a bool of the metadata key `{name}` is {got}, expected 0 or 1");
    Err(Error::input("bool", message))
}

fn read_array(cursor: &mut Cursor, key: Range<usize>, name: &str) -> Result<Entry> {
    let type_at = cursor.at();
    let element = value_type(cursor, name)?;
    let at = cursor.at();
    if element == ValueType::Array {
        let message = format!("byte {type_at}: the metadata key `{name}` is an array of arrays");
        return Err(Error::input("nested array", message));
    }
    let count = cursor.count("the length of an array")?;
    let what = format!("elements of the metadata key `{name}`");
    let record = element.width().map_or(cursor.count_width(), |w| w as u64);
    cursor.check_count(at, &what, count, record)?;
    let start = cursor.at();
    if element == ValueType::Str {
        if count > MAX_STRINGS {
            let message = format!("byte {at}: {count} {what}, at most {MAX_STRINGS} strings are allowed");
            return Err(Error::input("limit", message));
        }
        for _ in 0..count {
            read_string(cursor, name)?;
        }
    } else {
        let bytes = cursor.take(count.saturating_mul(record), "an array")?;
        if element == ValueType::Bool {
            check_bools(bytes, start, name)?;
        }
    }
    Ok(Entry { key, ty: ValueType::Array, value: start..cursor.at(), element, count })
}

/// `general.alignment`, which must be a `u32`, a power of two and in range.
fn alignment(metadata: &Metadata) -> Result<u64> {
    let key = "general.alignment";
    let Some(value) = metadata.get(key) else { return Ok(DEFAULT_ALIGNMENT) };
    let alignment = match value {
        Value::U32(a) => check_alignment(u64::from(a)),
        other => {
            let message = format!("the metadata key `{key}` is {}, expected u32", other.type_name());
            Err(Error::input("key type", message))
        }
    };
    alignment.map_err(|e| e.at(format_args!("byte {}", metadata.offset_of(key).unwrap_or_default())))
}

pub(crate) fn check_alignment(alignment: u64) -> Result<u64> {
    if alignment.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&alignment) {
        return Ok(alignment);
    }
    let message = format!(
        "the metadata key `general.alignment` is {alignment}, expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
    );
    Err(Error::input("alignment", message))
}
