//! The tensor descriptors: each by itself, then all together against the file.

use planish_base::{Error, Result, TypeId};

use super::cursor::{Cursor, INCOMPLETE};
use super::limits::{MAX_DIMS, MAX_NAME_BYTES};
use super::read::check_header_size;
use super::{TensorInfo, pad};

/// The checked descriptors of a file.
pub(crate) struct Directory {
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) by_name: Vec<u32>,
    pub(crate) data_start: u64,
}

/// Reads `count` descriptors, a number that has been checked against the bytes that remain.
pub(crate) fn read(cursor: &mut Cursor, count: usize, alignment: u64, file_len: u64) -> Result<Directory> {
    let mut tensors = Vec::with_capacity(count);
    // The sum of padded sizes: what the data section needs when nothing overlaps.
    let mut total = 0u64;
    for _ in 0..count {
        let at = cursor.at();
        let tensor = read_descriptor(cursor, alignment)?;
        total = pad(tensor.bytes, alignment)
            .and_then(|n| n.checked_add(total))
            .ok_or_else(|| at_tensor("size overflow", at, &tensor.name, "the sizes so far exceed 64 bits"))?;
        tensors.push(tensor);
        check_header_size(cursor)?;
    }
    let by_name = index(&tensors)?;
    let data_start = if tensors.is_empty() {
        cursor.at() as u64
    } else {
        pad(cursor.at() as u64, alignment).unwrap_or(u64::MAX)
    };
    place(&mut tensors, data_start, file_len)?;
    Ok(Directory { tensors, by_name, data_start })
}

fn at_tensor(code: &'static str, at: usize, name: &str, why: &str) -> Error {
    Error::input(code, format!("byte {at}: tensor `{name}`: {why}"))
}

/// One descriptor; its offset still counts from the start of the data.
fn read_descriptor(cursor: &mut Cursor, alignment: u64) -> Result<TensorInfo> {
    let name = read_name(cursor)?;
    let at = cursor.at();
    let n_dims = cursor.u32("the number of dimensions")?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        let why = format!("{n_dims} dimensions, expected 1 to {MAX_DIMS}");
        return Err(at_tensor("n_dims", at, &name, &why));
    }
    let mut dims = Vec::with_capacity(MAX_DIMS as usize);
    let mut elements = 1u64;
    for i in 0..n_dims {
        let at = cursor.at();
        let dim = cursor.count("a dimension")?;
        if dim == 0 {
            return Err(at_tensor("zero dim", at, &name, &format!("dimension {i} is zero")));
        }
        // Others read dimensions and their product as signed 64-bit numbers.
        elements = match elements.checked_mul(dim) {
            Some(n) if i64::try_from(n).is_ok() => n,
            _ => {
                let why = format!("the number of elements exceeds 63 bits at dimension {i} ({dim})");
                return Err(at_tensor("size overflow", at, &name, &why));
            }
        };
        dims.push(dim);
    }
    dims.shrink_to_fit();
    let at = cursor.at();
    let ty = TypeId(cursor.u32("a tensor type")?);
    let bytes = size(ty, &dims, elements, at, &name)?;
    let at = cursor.at();
    let offset = cursor.u64("a tensor offset")?;
    if !offset.is_multiple_of(alignment) {
        let why = format!("offset {offset} is not a multiple of the alignment {alignment}");
        return Err(at_tensor("offset", at, &name, &why));
    }
    Ok(TensorInfo { name, dims, ty, offset, bytes })
}

fn read_name(cursor: &mut Cursor) -> Result<String> {
    let at = cursor.at();
    let bad = |why: String| Err(Error::input("tensor name", format!("byte {at}: {why}")));
    let len = cursor.count("a tensor name")?;
    if !(1..=MAX_NAME_BYTES).contains(&len) {
        return bad(format!("a tensor name has {len} bytes, expected 1 to {MAX_NAME_BYTES}"));
    }
    let bytes = cursor.take(len, "a tensor name")?;
    match str::from_utf8(bytes) {
        Ok(name) if name.chars().any(char::is_control) => {
            bad(format!("the tensor name {name:?} has a control character"))
        }
        Ok(name) => Ok(name.to_string()),
        Err(_) => bad(format!("the tensor name {:?} is not UTF-8", String::from_utf8_lossy(bytes))),
    }
}

/// Bytes of a tensor, when its type is known and its rows are whole blocks.
fn size(ty: TypeId, dims: &[u64], elements: u64, at: usize, name: &str) -> Result<u64> {
    let Some(layout) = ty.layout() else {
        return Err(match ty.removed() {
            Some(old) => {
                at_tensor("tensor type", at, name, &format!("type {} ({old}) was removed from ggml", ty.0))
                    .with_hint("quantise the model again, from its original, with a current llama.cpp")
            }
            None => at_tensor("tensor type", at, name, &format!("type {} is unknown", ty.0))
                .with_hint("the file may be newer than this program, or damaged"),
        });
    };
    let row = dims.first().copied().unwrap_or_default();
    if !row.is_multiple_of(layout.block) {
        let why =
            format!("rows of {row} elements are not whole blocks of {} ({})", layout.block, layout.name);
        return Err(at_tensor("row", at, name, &why));
    }
    layout.size_of(elements).filter(|n| i64::try_from(*n).is_ok()).ok_or_else(|| {
        let why = format!("{elements} elements of {} exceed 63 bits of bytes", layout.name);
        at_tensor("size overflow", at, name, &why)
    })
}

/// Indices ascending by name; refuses a name that occurs twice.
fn index(tensors: &[TensorInfo]) -> Result<Vec<u32>> {
    let mut by_name: Vec<u32> = (0..).take(tensors.len()).collect();
    let name = |i: &u32| tensors.get(*i as usize).map(|t| t.name.as_str());
    by_name.sort_unstable_by(|a, b| name(a).cmp(&name(b)).then(a.cmp(b)));
    for (a, b) in by_name.iter().zip(by_name.iter().skip(1)) {
        if name(a) == name(b) {
            let name = name(b).unwrap_or_default();
            let message = format!("descriptors {a} and {b}: the tensor name `{name}` occurs twice");
            return Err(Error::input("duplicate tensor", message));
        }
    }
    Ok(by_name)
}

/// Makes offsets absolute, and checks them against the file and against each other.
fn place(tensors: &mut [TensorInfo], data_start: u64, file_len: u64) -> Result<()> {
    for t in tensors.iter_mut() {
        let name = &t.name;
        if t.offset > file_len {
            let message =
                format!("tensor `{name}`: offset {} is beyond the file's {file_len} bytes", t.offset);
            return Err(Error::input("offset", message).with_hint(INCOMPLETE));
        }
        t.offset = data_start.saturating_add(t.offset);
        let end = t.offset.saturating_add(t.bytes);
        if end > file_len {
            let message =
                format!("tensor `{name}`: bytes {} to {end} exceed the file's {file_len} bytes", t.offset);
            return Err(Error::input("tensor exceeds file", message).with_hint(INCOMPLETE));
        }
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    for (a, b) in by_offset.iter().zip(by_offset.iter().skip(1)) {
        if a.offset.saturating_add(a.bytes) > b.offset {
            let message = format!("byte {}: tensor `{}` begins inside tensor `{}`", b.offset, b.name, a.name);
            return Err(Error::input("overlap", message));
        }
    }
    Ok(())
}
