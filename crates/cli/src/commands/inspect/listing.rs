//! A file's header, metadata and tensor table.

use std::collections::BTreeMap;
use std::ops::Range;

use planish_base::{Error, Result, TypeId};
use planish_store::Bytes;
use planish_store::gguf::Gguf;
use planish_store::safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use super::value;
use crate::output::{Out, printable};

/// What is common to both formats.
pub struct Listing {
    bytes: Bytes,
    /// One line about the format, and the same as JSON.
    header: String,
    header_json: Map<String, Value>,
    metadata: Vec<Entry>,
    pub tensors: Vec<Tensor>,
    /// What the format calls the dimensions: `dims`, the fastest-varying first, or `shape`, the slowest first.
    dims_name: &'static str,
}

/// A metadata entry.
struct Entry {
    key: String,
    ty: String,
    text: String,
    json: Value,
}

/// A line of the tensor table.
pub struct Tensor {
    pub name: String,
    pub ty: String,
    /// None for a type that ggml has not.
    pub id: Option<TypeId>,
    pub dims: Vec<u64>,
    pub range: Range<usize>,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

impl Listing {
    /// Lists a GGUF file.
    ///
    /// # Errors
    /// As [`Gguf::from_bytes`].
    pub fn gguf(bytes: Bytes) -> Result<Listing> {
        let gguf = Gguf::from_bytes(bytes.clone())?;
        let entry = |(key, v): (&str, planish_store::gguf::Value)| Entry {
            key: key.to_owned(),
            ty: v.type_name(),
            text: value::text(&v),
            json: value::object(&v),
        };
        let tensor = |t: &planish_store::gguf::TensorInfo| Tensor {
            name: t.name.clone(),
            ty: t.ty.name(),
            id: Some(t.ty),
            dims: t.dims.clone(),
            range: t.offset as usize..(t.offset + t.bytes) as usize,
        };
        let (version, alignment) = (gguf.version(), gguf.alignment());
        let header_json = json!({"format": "gguf", "version": version, "alignment": alignment,
            "data_offset": gguf.data_start(), "packed": gguf.is_packed()});
        let holes = if gguf.is_packed() { "" } else { ", tensors not packed (llama.cpp refuses this)" };
        Ok(Listing {
            header: format!("GGUF version {version}, alignment {alignment}{holes}"),
            header_json: object(header_json),
            metadata: gguf.metadata().iter().map(entry).collect(),
            tensors: gguf.tensors().iter().map(tensor).collect(),
            dims_name: "dims",
            bytes,
        })
    }

    /// Lists a safetensors file.
    ///
    /// # Errors
    /// As [`SafeTensors::from_bytes`].
    pub fn safetensors(bytes: Bytes) -> Result<Listing> {
        let file = SafeTensors::from_bytes(bytes.clone())?;
        let entry = |(key, v): (&String, &String)| Entry {
            key: key.clone(),
            ty: "string".to_owned(),
            text: value::quoted(v),
            json: json!({"type": "string", "value": v}),
        };
        let start = bytes.as_ptr() as usize;
        let tensor = |name: &str| {
            let t = file.get(name)?;
            let offset = t.data.as_ptr() as usize - start;
            Some(Tensor {
                name: name.to_owned(),
                ty: t.dtype.to_string().to_lowercase(),
                id: match t.dtype {
                    Dtype::F32 => Some(TypeId::F32),
                    Dtype::F16 => Some(TypeId::F16),
                    Dtype::BF16 => Some(TypeId::BF16),
                    _ => None,
                },
                dims: t.shape.iter().map(|d| *d as u64).collect(),
                range: offset..offset + t.data.len(),
            })
        };
        Ok(Listing {
            header: "safetensors".to_owned(),
            header_json: object(json!({"format": "safetensors"})),
            metadata: file.metadata().iter().map(entry).collect(),
            tensors: file.names().filter_map(tensor).collect(),
            dims_name: "shape",
            bytes,
        })
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// Kind `Usage` when there is none.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.iter().find(|t| t.name == name).ok_or_else(|| {
            // A name of PyTorch style often differs only in its end.
            let like = self.tensors.iter().find(|t| t.name.starts_with(name));
            let like = like.or(self.tensors.first()).map_or(String::new(), |t| format!(", such as {}", t.name));
            Error::usage("tensor", format!("no tensor is called `{name}`"))
                .with_hint(format!("`planish inspect FILE` lists all names{like}"))
        })
    }

    /// The bytes of a tensor.
    pub fn data(&self, tensor: &Tensor) -> &[u8] {
        &self.bytes[tensor.range.clone()]
    }

    /// Prints everything.
    ///
    /// # Errors
    /// When stdout fails.
    pub fn print(&self, out: &mut Out) -> Result<()> {
        out.line(&format!("format    {}", self.header))?;
        out.line(&format!("size      {} bytes", self.bytes.len()))?;
        out.line(&format!("metadata  {} entries", self.metadata.len()))?;
        let key_width = width(self.metadata.iter().map(|e| e.key.as_str()));
        let type_width = width(self.metadata.iter().map(|e| e.ty.as_str()));
        for e in &self.metadata {
            let key = printable(&e.key);
            out.line(&format!("  {key:key_width$}  {:type_width$}  {}", e.ty, e.text))?;
        }
        let types: Vec<String> = self.types().iter().map(|(ty, n)| format!("{n} {ty}")).collect();
        let types = if types.is_empty() { String::new() } else { format!(" ({})", types.join(", ")) };
        out.line(&format!("tensors   {}{types}, {} elements", self.tensors.len(), self.elements()))?;
        let name_width = width(self.tensors.iter().map(|t| t.name.as_str()));
        let type_width = width(self.tensors.iter().map(|t| t.ty.as_str()));
        let dims: Vec<String> = self.tensors.iter().map(|t| format!("{:?}", t.dims)).collect();
        let dims_width = width(dims.iter().map(String::as_str));
        for (t, dims) in self.tensors.iter().zip(&dims) {
            let (name, bytes, at) = (printable(&t.name), t.range.len(), t.range.start);
            let shape = format!("{:type_width$}  {dims:dims_width$}", t.ty);
            out.line(&format!("  {name:name_width$}  {shape}  {bytes} bytes at {at}"))?;
        }
        Ok(())
    }

    /// Everything as one object.
    pub fn json(&self) -> Value {
        let mut root = self.header_json.clone();
        root.insert("bytes".to_owned(), json!(self.bytes.len()));
        let metadata: Map<String, Value> =
            self.metadata.iter().map(|e| (e.key.clone(), e.json.clone())).collect();
        root.insert("metadata".to_owned(), Value::Object(metadata));
        root.insert("elements".to_owned(), json!(self.elements()));
        root.insert("types".to_owned(), json!(self.types()));
        let tensor = |t: &Tensor| {
            json!({"name": t.name, "type": t.ty, self.dims_name: t.dims, "offset": t.range.start,
                "bytes": t.range.len()})
        };
        root.insert("tensors".to_owned(), self.tensors.iter().map(tensor).collect());
        Value::Object(root)
    }

    fn elements(&self) -> u64 {
        self.tensors.iter().fold(0u64, |n, t| n.saturating_add(t.elements()))
    }

    /// How many tensors there are of each type.
    fn types(&self) -> BTreeMap<&str, usize> {
        let mut types = BTreeMap::new();
        self.tensors.iter().for_each(|t| *types.entry(t.ty.as_str()).or_insert(0) += 1);
        types
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Width of a column, bounded so that one long name does not push all lines apart.
fn width<'a>(cells: impl Iterator<Item = &'a str>) -> usize {
    cells.map(|c| c.chars().count()).max().unwrap_or(0).min(48)
}
