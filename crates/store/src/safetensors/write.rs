//! The writer.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Dtype, MAX_HEADER_BYTES};
use crate::{Error, Result, fs};

/// Writes tensors (name, element type, shape, little-endian data) and metadata, atomically replacing `path`.
///
/// As the reference implementation does, the data is ordered by descending alignment of the element type and then by
/// name, and the header is padded with blanks to 8 bytes; the same input always gives the same bytes.
///
/// Errors: `duplicate tensor`, `tensor name` (the reserved `__metadata__`), `size overflow`, `tensor bytes` when data
/// does not match shape and type, `limit`, and those of [`fs::write_atomic`].
pub fn write(
    path: &Path,
    tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut header = header(&order, metadata)?.into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        let message = format!("a header of {} bytes, at most {MAX_HEADER_BYTES} are allowed", header.len());
        return Err(Error::input("limit", message));
    }
    fs::write_atomic(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(fs::write_failed)?;
        out.write_all(&header).map_err(fs::write_failed)?;
        for (_, _, _, data) in &order {
            out.write_all(data).map_err(fs::write_failed)?;
        }
        Ok(())
    })
}

fn header(
    order: &[&(String, Dtype, Vec<usize>, Vec<u8>)],
    metadata: &BTreeMap<String, String>,
) -> Result<String> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_string(), json!(metadata));
    }
    let mut names = HashSet::new();
    let mut offset = 0usize;
    for (name, dtype, shape, data) in order {
        let bad = |code, why: &str| Err(Error::input(code, format!("tensor `{name}`: {why}")));
        if name == "__metadata__" {
            return bad("tensor name", "the name is reserved");
        }
        if !names.insert(name) {
            return bad("duplicate tensor", "given twice");
        }
        let bits = shape.iter().try_fold(dtype.bitsize(), |n, d| n.checked_mul(*d));
        let Some(bits) = bits else { return bad("size overflow", &format!("shape {shape:?}")) };
        if !bits.is_multiple_of(8) || bits / 8 != data.len() {
            let why = format!("shape {shape:?} of {dtype} has {bits} bits, {} bytes were given", data.len());
            return bad("tensor bytes", &why);
        }
        let end = offset.saturating_add(data.len());
        let info: Value = json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.clone(), info);
        offset = end;
    }
    Ok(Value::Object(header).to_string())
}
