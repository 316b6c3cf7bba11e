//! GGUF: the file format of llama.cpp (ggml's `docs/gguf.md`).
//!
//! Layout: magic, version, number of tensors, number of metadata entries; the entries; a descriptor for each tensor;
//! padding to the alignment; the tensors' data. Little endian.
//!
//! The reader takes versions 1 (32-bit counts, lengths and dimensions), 2 and 3, and checks everything before a
//! [`Gguf`] exists. Where readers of the field differ, this one decides so:
//!
//! - Refused: duplicate keys and tensor names, overlapping tensors, dimensions of zero, scalars (no dimensions),
//!   nested arrays, keys that are empty or hold control characters, strings that are not UTF-8, bools other than 0 and
//!   1, an alignment that is not a power of two from 8 to 65536, tensor names above 64 bytes, big-endian files.
//! - Accepted: a file without tensors; missing padding after the last tensor; bytes after the last tensor (they are
//!   never read, and some tools append to files); tensors in any order and with holes between them, as long as they
//!   are aligned and do not overlap ([`Gguf::is_packed`] says whether llama.cpp would take the layout); upper case
//!   and blanks in keys.
//!
//! Limits on what a file may ask for are in [`limits`].
#![forbid(unsafe_code)]

mod cursor;
pub mod limits;
mod magic;
mod metadata;
mod read;
mod tensors;
mod value;
mod write;

use std::path::Path;

use planish_base::{Result, TypeId};

use crate::Bytes;

pub use metadata::Metadata;
pub use value::{Array, Elements, OwnedValue, Value, ValueType};
pub use write::Writer;

/// A GGUF file. One that exists is valid.
#[derive(Clone, Debug)]
pub struct Gguf {
    bytes: Bytes,
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, ascending by name.
    by_name: Vec<u32>,
    data_start: u64,
}

/// What a file says about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique in the file, 1 to 64 bytes.
    pub name: String,
    /// 1 to 4 dimensions, the fastest-varying first; none is zero.
    pub dims: Vec<u64>,
    /// A type whose layout is known; `dims[0]` is a whole number of its blocks.
    pub ty: TypeId,
    /// Offset of the first byte from the start of the file.
    pub offset: u64,
    /// Length in bytes, without padding.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The reader has checked that the product fits.
        self.dims.iter().fold(1, |n: u64, d| n.saturating_mul(*d))
    }
}

impl Gguf {
    /// Maps a file and reads its header; no tensor data is touched.
    ///
    /// Errors: those of [`Bytes::map`] and [`Gguf::from_bytes`], with the path.
    pub fn open(path: &Path) -> Result<Gguf> {
        Gguf::from_bytes(Bytes::map(path)?).map_err(|e| e.in_file(path))
    }

    /// Reads a file that is in memory.
    ///
    /// Errors are [`Kind::Input`](crate::Kind::Input) and say at which byte, with the codes `truncated`, `magic`,
    /// `version`, `count`, `limit`, `key`, `value type`, `bool`, `utf-8`, `nested array`, `duplicate key`, `key type`,
    /// `alignment`, `n_dims`, `zero dim`, `tensor name`, `size overflow`, `tensor type`, `row`, `offset`,
    /// `tensor exceeds file`, `overlap`, `duplicate tensor`. A file cut short is `truncated`, `count` or
    /// `tensor exceeds file`, by where the cut fell.
    pub fn from_bytes(bytes: Bytes) -> Result<Gguf> {
        read::read(bytes)
    }

    /// 1, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensor offsets are multiples of, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of their descriptors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let tensor = |i: u32| self.tensors.get(i as usize);
        let found =
            self.by_name.binary_search_by(|&i| tensor(i).map(|t| t.name.as_str()).cmp(&Some(name))).ok()?;
        tensor(*self.by_name.get(found)?)
    }

    /// The bytes of a tensor of this file.
    ///
    /// # Panics
    /// When `t` is of another, larger file.
    pub fn data(&self, t: &TensorInfo) -> &[u8] {
        let range =
            usize::try_from(t.offset).ok().zip(usize::try_from(t.offset.saturating_add(t.bytes)).ok());
        range.and_then(|(from, to)| self.bytes.get(from..to)).expect("the tensor is of this file")
    }

    /// The whole file; [`TensorInfo::offset`] counts from its start.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Bytes of header, metadata and descriptors, with the padding before the data.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Whether each tensor begins where the one before it ends, after padding: what llama.cpp insists on.
    pub fn is_packed(&self) -> bool {
        let mut expected = self.data_start;
        for t in &self.tensors {
            if t.offset != expected {
                return false;
            }
            expected = pad(t.offset.saturating_add(t.bytes), self.alignment).unwrap_or(u64::MAX);
        }
        true
    }
}

/// The next multiple of a power of two.
pub(crate) fn pad(n: u64, alignment: u64) -> Option<u64> {
    n.checked_next_multiple_of(alignment)
}
