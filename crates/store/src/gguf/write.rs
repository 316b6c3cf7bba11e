//! The writer: version 3, tensors in the order they were declared, data streamed.

use std::collections::HashSet;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use planish_base::{Error, Result, TypeId};

use super::limits::{DEFAULT_ALIGNMENT, MAX_DIMS};
use super::metadata::{Entry, Metadata};
use super::pad;
use super::read::check_alignment;
use super::value::{Array, OwnedValue, Value, ValueType, check_key, put_string};
use crate::{Bytes, fs};

/// llama.cpp keeps names in 64 bytes with a terminating zero.
const MAX_NAME_BYTES: usize = 63;

const ALIGNMENT_KEY: &str = "general.alignment";

/// Builds a GGUF file of version 3: metadata in the order given, tensors in the order declared, each beginning where
/// the one before it ends after padding, which is what llama.cpp insists on.
///
/// The alignment is the metadata's `general.alignment`, or 32.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Stored)>,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

/// A value as it will stand in the file after its type number.
#[derive(Clone, Debug)]
struct Stored {
    ty: ValueType,
    head: Vec<u8>,
    /// Bytes that follow `head`, in the file they are copied from.
    shared: Option<(Bytes, Range<usize>)>,
}

impl Stored {
    fn shared(&self) -> &[u8] {
        self.shared.as_ref().and_then(|(bytes, range)| bytes.get(range.clone())).unwrap_or_default()
    }

    fn len(&self) -> u64 {
        (self.head.len() as u64).saturating_add(self.shared().len() as u64)
    }
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dims: Vec<u64>,
    ty: TypeId,
    bytes: u64,
}

impl Writer {
    /// Without metadata and tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Takes over the entries of a file whose key `keep` accepts, in their order and byte for byte (the 32-bit lengths
    /// of version 1 become 64-bit ones). A key that is already there keeps its place and gets the new value.
    pub fn copy_metadata(&mut self, from: &Metadata, keep: impl Fn(&str) -> bool) {
        let before = self.metadata.len();
        for (key, entry) in from.entries().filter(|(key, _)| keep(key)) {
            let value = copy(from, entry);
            // Keys are unique within `from`: only those that were there before can be the same.
            let existing = self.metadata.iter_mut().take(before).find(|(k, _)| k == key);
            match existing {
                Some((_, slot)) => *slot = value,
                None => self.metadata.push((key.to_string(), value)),
            }
        }
    }

    /// Sets a key: in its place when it is there, else at the end.
    pub fn set(&mut self, key: &str, v: OwnedValue) {
        let (ty, head) = v.encode();
        let value = Stored { ty, head, shared: None };
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, slot)) => *slot = value,
            None => self.metadata.push((key.to_string(), value)),
        }
    }

    /// Removes a key; an absent one is fine.
    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    /// Declares the next tensor; `dims` has the fastest-varying dimension first.
    ///
    /// Errors: `tensor name` (empty, above the 63 bytes that llama.cpp takes, control characters), `duplicate tensor`,
    /// `n_dims`, `zero dim`, `tensor type`, `row`, `size overflow`.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: TypeId) -> Result<()> {
        let bad = |code, why: String| Err(Error::input(code, format!("tensor `{name}`: {why}")));
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return bad(
                "tensor name",
                format!(
                    "the name has {} bytes, expected 1 to {MAX_NAME_BYTES} without control characters",
                    name.len()
                ),
            );
        }
        if self.names.contains(name) {
            return bad("duplicate tensor", "declared twice".to_string());
        }
        if dims.is_empty() || dims.len() > MAX_DIMS as usize {
            return bad("n_dims", format!("{} dimensions, expected 1 to {MAX_DIMS}", dims.len()));
        }
        if dims.contains(&0) {
            return bad("zero dim", format!("dimensions {dims:?}"));
        }
        let Some(layout) = ty.layout() else {
            return bad("tensor type", format!("{} is unknown", ty.name()));
        };
        let row = dims.first().copied().unwrap_or_default();
        if !row.is_multiple_of(layout.block) {
            return bad(
                "row",
                format!("rows of {row} are not whole blocks of {} ({})", layout.block, layout.name),
            );
        }
        let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| layout.size_of(n)).filter(|n| i64::try_from(*n).is_ok());
        let Some(bytes) = bytes else { return bad("size overflow", format!("dimensions {dims:?}")) };
        self.names.insert(name.to_string());
        self.tensors.push(Declared { name: name.to_string(), dims: dims.to_vec(), ty, bytes });
        Ok(())
    }

    /// Number of tensors declared.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        let alignment = self.alignment().unwrap_or(DEFAULT_ALIGNMENT);
        let data = self
            .tensors
            .iter()
            .fold(0u64, |n, t| n.saturating_add(pad(t.bytes, alignment).unwrap_or(u64::MAX)));
        self.padded_header_size(alignment).saturating_add(data)
    }

    /// Writes the file, atomically replacing `path`. `fill(i, sink)` writes the bytes of tensor `i`, in order of
    /// declaration.
    ///
    /// Errors: those of `fill`; `tensor bytes` when it wrote more or fewer bytes than the tensor has; `key` and
    /// `alignment` for metadata that could not be read back; `disk full` and others of [`fs::write_atomic`].
    pub fn write(
        &self,
        path: &Path,
        mut fill: impl FnMut(usize, &mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let alignment = self.alignment()?;
        for (key, _) in &self.metadata {
            check_key(key.as_bytes())?;
        }
        fs::write_atomic(path, |out| {
            self.write_header(out, alignment).map_err(fs::write_failed)?;
            for (i, t) in self.tensors.iter().enumerate() {
                let mut sink = Exact { out: &mut *out, left: t.bytes, overrun: false };
                let filled = fill(i, &mut sink);
                let Exact { left, overrun, .. } = sink;
                if overrun {
                    return Err(wrong_bytes(t, "more"));
                }
                filled?;
                if left != 0 {
                    return Err(wrong_bytes(t, &format!("{left} fewer")));
                }
                let padding = pad(t.bytes, alignment).unwrap_or(t.bytes).saturating_sub(t.bytes);
                write_zeros(out, padding).map_err(fs::write_failed)?;
            }
            Ok(())
        })
    }

    fn alignment(&self) -> Result<u64> {
        match self.metadata.iter().find(|(k, _)| k == ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some((_, v)) if v.ty == ValueType::U32 => {
                let bytes = if v.head.is_empty() { v.shared() } else { &v.head };
                check_alignment(u64::from(u32::from_le_bytes(super::cursor::fixed(bytes))))
            }
            Some((_, v)) => {
                let message = format!("the metadata key `{ALIGNMENT_KEY}` is {}, expected u32", v.ty.name());
                Err(Error::input("key type", message))
            }
        }
    }

    fn padded_header_size(&self, alignment: u64) -> u64 {
        let entry = |(k, v): &(String, Stored)| (k.len() as u64).saturating_add(v.len()).saturating_add(12);
        let descriptor = |t: &Declared| {
            (t.dims.len() as u64).saturating_mul(8).saturating_add(t.name.len() as u64).saturating_add(24)
        };
        let entries = self.metadata.iter().map(entry).fold(24u64, u64::saturating_add);
        let size = self.tensors.iter().map(descriptor).fold(entries, u64::saturating_add);
        if self.tensors.is_empty() { size } else { pad(size, alignment).unwrap_or(u64::MAX) }
    }

    fn write_header(&self, out: &mut dyn Write, alignment: u64) -> io::Result<()> {
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.metadata.len() as u64).to_le_bytes());
        out.write_all(&head)?;
        let mut written = head.len() as u64;
        for (key, value) in &self.metadata {
            head.clear();
            put_string(key, &mut head);
            head.extend((value.ty as u32).to_le_bytes());
            head.extend(&value.head);
            out.write_all(&head)?;
            out.write_all(value.shared())?;
            written = written.saturating_add(head.len() as u64).saturating_add(value.shared().len() as u64);
        }
        head.clear();
        let mut offset = 0u64;
        for t in &self.tensors {
            put_string(&t.name, &mut head);
            head.extend((t.dims.len() as u32).to_le_bytes());
            for d in &t.dims {
                head.extend(d.to_le_bytes());
            }
            head.extend(t.ty.0.to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset = offset.saturating_add(pad(t.bytes, alignment).unwrap_or(u64::MAX));
        }
        out.write_all(&head)?;
        written = written.saturating_add(head.len() as u64);
        write_zeros(out, self.padded_header_size(alignment).saturating_sub(written))
    }
}

/// An entry of a file as the writer stores it: by reference, except what version 1 wrote with 32-bit lengths.
fn copy(from: &Metadata, entry: &Entry) -> Stored {
    let shared = Some((from.storage().clone(), entry.value.clone()));
    match from.value(entry) {
        Value::Str(s) => Stored { ty: entry.ty, head: (s.len() as u64).to_le_bytes().to_vec(), shared },
        Value::Array(array) => {
            let mut head = Vec::new();
            head.extend((entry.element as u32).to_le_bytes());
            head.extend(entry.count.to_le_bytes());
            if array.element_type() == ValueType::Str && from.narrow() {
                widen(array, &mut head);
                return Stored { ty: entry.ty, head, shared: None };
            }
            Stored { ty: entry.ty, head, shared }
        }
        _ => Stored { ty: entry.ty, head: Vec::new(), shared },
    }
}

fn widen(array: Array<'_>, out: &mut Vec<u8>) {
    for element in array.iter() {
        if let Value::Str(s) = element {
            put_string(s, out);
        }
    }
}

fn wrong_bytes(t: &Declared, what: &str) -> Error {
    let message = format!("tensor `{}`: {what} bytes written than the {} it has", t.name, t.bytes);
    Error::input("tensor bytes", message)
}

fn write_zeros(out: &mut dyn Write, n: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), n), out).map(drop)
}

/// Passes on at most `left` bytes.
struct Exact<'a> {
    out: &'a mut dyn Write,
    left: u64,
    overrun: bool,
}

impl Write for Exact<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.overrun = true;
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more bytes than the tensor has"));
        }
        let n = self.out.write(bytes)?;
        self.left = self.left.saturating_sub(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
