//! safetensors: a 64-bit little-endian header length, a JSON header `{name: {dtype, shape, data_offsets}}` with an
//! optional `__metadata__` of strings, and the data (<https://github.com/huggingface/safetensors>).
//!
//! The header is first read by a strict visitor that bounds memory and refuses what JSON maps let pass (names twice,
//! unknown fields), then by the reference crate, which checks that the tensors cover the data exactly.
#![forbid(unsafe_code)]

mod header;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::{Bytes, Error, Result};
pub use ::safetensors::Dtype;
use ::safetensors::{SafeTensorError, SafeTensors as Reference};

pub use write::{TensorSpec, write, write_to};

/// Bytes of the header that the format allows.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Dimensions of a tensor. The format has no limit; no framework makes more.
pub const MAX_DIMS: usize = 8;

/// A safetensors file. One that exists is valid.
#[derive(Clone, Debug)]
pub struct SafeTensors {
    bytes: Bytes,
    metadata: BTreeMap<String, String>,
    /// Ascending by place in the file.
    entries: Vec<Entry>,
    /// Indices of `entries`, ascending by name.
    by_name: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// From the start of the file.
    range: Range<usize>,
}

/// One tensor, borrowed from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// The element type.
    pub dtype: Dtype,
    /// Dimensions, the slowest-varying first; none for a scalar.
    pub shape: Vec<usize>,
    /// Little-endian elements in row-major order.
    pub data: &'a [u8],
}

impl SafeTensors {
    /// Maps a file and reads its header; no tensor data is touched.
    ///
    /// Errors: those of [`Bytes::map`] and [`SafeTensors::from_bytes`], with the path.
    pub fn open(path: &Path) -> Result<SafeTensors> {
        SafeTensors::from_bytes(Bytes::map(path)?).map_err(|e| e.in_file(path))
    }

    /// Reads a file that is in memory.
    ///
    /// Errors: `truncated`, `limit` (a header above 100 MB), `header` (not JSON of the right form, a name twice, an
    /// unknown dtype), `size overflow`, `offset` (holes, overlaps, data that does not match shape and dtype, data
    /// that no tensor covers).
    pub fn from_bytes(bytes: Bytes) -> Result<SafeTensors> {
        let json = header_json(&bytes)?;
        let header = header::parse(json)?;
        let (header_len, _) = Reference::read_metadata(&bytes).map_err(reference_error)?;
        let data_start = header_len.saturating_add(8);
        let mut entries: Vec<Entry> = Vec::with_capacity(header.tensors.len());
        for (name, info) in header.tensors {
            let (from, to) = info.data_offsets;
            let range = data_start.saturating_add(from)..data_start.saturating_add(to);
            entries.push(Entry { name, dtype: info.dtype, shape: info.shape.0, range });
        }
        // Tensors without elements share their place with a neighbour.
        entries.sort_by(|a, b| {
            (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name))
        });
        let name = |i: &u32| entries.get(*i as usize).map(|e| e.name.as_str());
        let mut by_name: Vec<u32> = (0..).take(entries.len()).collect();
        by_name.sort_by(|a, b| name(a).cmp(&name(b)));
        Ok(SafeTensors { bytes, metadata: header.metadata, entries, by_name })
    }

    /// Names in the order of the data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.name.as_str())
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let entry = |i: u32| self.entries.get(i as usize);
        let found =
            self.by_name.binary_search_by(|&i| entry(i).map(|e| e.name.as_str()).cmp(&Some(name))).ok()?;
        let e = entry(*self.by_name.get(found)?)?;
        Some(Tensor { dtype: e.dtype, shape: e.shape.clone(), data: self.bytes.get(e.range.clone())? })
    }

    /// The strings of `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The whole file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// The header's text, its length checked against the limit and the file.
fn header_json(bytes: &[u8]) -> Result<&str> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        let message = format!("byte 0: the header length needs 8 bytes, the file has {}", bytes.len());
        return Err(Error::input("truncated", message));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_BYTES {
        let message = format!("byte 0: a header of {len} bytes, at most {MAX_HEADER_BYTES} are allowed");
        return Err(Error::input("limit", message).with_hint("this is perhaps not a safetensors file"));
    }
    let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
    let Some(header) = header else {
        let message = format!("byte 8: the header needs {len} bytes, {} remain", rest.len());
        return Err(Error::input("truncated", message).with_hint(
            "the file may be incomplete: compare its size with the original, and fetch it again",
        ));
    };
    if header.first() != Some(&b'{') {
        return Err(Error::input("header", "byte 8: the header does not begin with `{`"));
    }
    str::from_utf8(header).map_err(|e| {
        let at = e.valid_up_to().saturating_add(8);
        Error::input("header", format!("byte {at}: the header is not UTF-8"))
    })
}

fn reference_error(e: SafeTensorError) -> Error {
    use SafeTensorError as E;
    let code = match e {
        E::ValidationOverflow => "size overflow",
        E::InvalidOffset(_)
        | E::TensorInvalidInfo
        | E::InvalidTensorView(..)
        | E::MetadataIncompleteBuffer
        | E::MisalignedSlice => "offset",
        _ => "header",
    };
    Error::input(code, format!("the header does not fit the data: {e}"))
}
