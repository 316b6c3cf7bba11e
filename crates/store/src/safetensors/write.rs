//! The writer.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Dtype, MAX_HEADER_BYTES};
use crate::{Error, Result, fs};

/// What the header says of a tensor: name, element type, shape.
pub type TensorSpec = (String, Dtype, Vec<usize>);

/// Writes tensors (name, element type, shape, little-endian data) and metadata, atomically replacing `path`.
///
/// Errors: those of [`write_to`] and of [`fs::write_atomic`].
pub fn write(
    path: &Path,
    tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let specs: Vec<TensorSpec> =
        tensors.iter().map(|(name, dtype, shape, _)| (name.clone(), *dtype, shape.clone())).collect();
    fs::write_atomic(path, |out| {
        write_to(out, &specs, metadata, &mut |i, out| {
            let data = tensors.get(i).map_or(&[][..], |t| &t.3);
            out.write_all(data).map_err(fs::write_failed)
        })
    })
}

/// Writes a whole file to `out`, tensor by tensor: `fill(i, out)` writes the little-endian data of `tensors[i]`.
///
/// As the reference implementation does, the data is ordered by descending alignment of the element type and then by
/// name, and the header is padded with blanks to 8 bytes; the same input always gives the same bytes.
///
/// Errors: `duplicate tensor`, `tensor name` (the reserved `__metadata__`), `size overflow`, `tensor bytes` when data
/// does not match shape and type, `limit`, and those of `fill`.
pub fn write_to(
    out: &mut dyn Write,
    tensors: &[TensorSpec],
    metadata: &BTreeMap<String, String>,
    fill: &mut dyn FnMut(usize, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    let mut order: Vec<(usize, &TensorSpec)> = tensors.iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let (header, sizes) = header(order.iter().map(|(_, spec)| *spec), metadata)?;
    let mut header = header.into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        let message = format!("a header of {} bytes, at most {MAX_HEADER_BYTES} are allowed", header.len());
        return Err(Error::input("limit", message));
    }
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(fs::write_failed)?;
    out.write_all(&header).map_err(fs::write_failed)?;
    for ((i, (name, dtype, shape)), size) in order.into_iter().zip(sizes) {
        let mut counted = Counted { out, written: 0 };
        fill(i, &mut counted)?;
        if counted.written != size as u64 {
            let written = counted.written;
            let why = format!("shape {shape:?} of {dtype} has {size} bytes, {written} bytes were given");
            return Err(bad("tensor bytes", name, &why));
        }
    }
    Ok(())
}

/// Counts what goes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written = self.written.saturating_add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

fn bad(code: &'static str, name: &str, why: &str) -> Error {
    Error::input(code, format!("tensor `{name}`: {why}"))
}

/// The header and the bytes of each tensor.
fn header<'a>(
    order: impl Iterator<Item = &'a TensorSpec>,
    metadata: &BTreeMap<String, String>,
) -> Result<(String, Vec<usize>)> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_string(), json!(metadata));
    }
    let mut names = HashSet::new();
    let (mut offset, mut sizes) = (0usize, Vec::new());
    for (name, dtype, shape) in order {
        if name == "__metadata__" {
            return Err(bad("tensor name", name, "the name is reserved"));
        }
        if !names.insert(name) {
            return Err(bad("duplicate tensor", name, "given twice"));
        }
        let bits = shape.iter().try_fold(dtype.bitsize(), |n, d| n.checked_mul(*d));
        let Some(bits) = bits else { return Err(bad("size overflow", name, &format!("shape {shape:?}"))) };
        if !bits.is_multiple_of(8) {
            let why = format!("shape {shape:?} of {dtype} has {bits} bits, which are not whole bytes");
            return Err(bad("tensor bytes", name, &why));
        }
        let end = offset.saturating_add(bits / 8);
        let info: Value = json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.clone(), info);
        sizes.push(bits / 8);
        offset = end;
    }
    Ok((Value::Object(header).to_string(), sizes))
}
