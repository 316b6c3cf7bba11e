//! Named tensors as they lie in files, before a model is built from them.

use std::collections::BTreeMap;

use planish_base::{Error, Result, TypeId};
use planish_store::Bytes;
use planish_store::gguf::Gguf;
use planish_store::safetensors::{Dtype, SafeTensors};

use crate::arch::Arch;
use crate::heads;

/// One tensor: a vector is one row.
#[derive(Clone, Debug)]
pub struct WeightEntry {
    /// Which of the files holds it.
    pub file: usize,
    /// Byte offset in that file.
    pub offset: u64,
    /// Rows, the slower index.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type of its elements.
    pub dtype: TypeId,
}

/// All tensors of a model by GGUF name, over the bytes of its files.
#[derive(Clone, Default)]
pub struct Weights {
    /// Mapped files.
    pub files: Vec<Bytes>,
    /// Tensors by GGUF name.
    pub entries: BTreeMap<String, WeightEntry>,
}

impl Weights {
    /// The tensors of a GGUF file; projections that it has head by head are joined.
    ///
    /// # Errors
    /// Kind `Input` for a tensor of more than two dimensions, and for heads that do not make a whole.
    pub fn from_gguf(gguf: &Gguf) -> Result<Weights> {
        let mut entries = BTreeMap::new();
        for t in gguf.tensors() {
            let [cols, rows] = match t.dims[..] {
                [cols] => [cols, 1],
                [cols, rows] => [cols, rows],
                _ => {
                    return Err(Error::input(
                        "shape",
                        format!("tensor `{}` has {} dimensions, expected 1 or 2", t.name, t.dims.len()),
                    ));
                }
            };
            let entry = WeightEntry {
                file: 0,
                offset: t.offset,
                rows: rows as usize,
                cols: cols as usize,
                dtype: t.ty,
            };
            entries.insert(t.name.clone(), entry);
        }
        let mut weights = Weights { files: vec![gguf.bytes().clone()], entries };
        heads::join(&mut weights)?;
        Ok(weights)
    }

    /// Adds the tensors of a safetensors file, renamed from Hugging Face to GGUF names.
    ///
    /// # Errors
    /// Kind `Input` for a name the architecture does not have, a type that cannot be computed with, or a shape of
    /// more than two dimensions.
    pub fn add_safetensors(&mut self, arch: &Arch, tensors: &SafeTensors) -> Result<()> {
        let file = self.files.len();
        self.files.push(tensors.bytes().clone());
        let base = tensors.bytes().as_ref().as_ptr() as usize;
        for name in tensors.names() {
            let t = tensors.get(name).expect("a listed tensor exists");
            let gguf_name = arch.gguf_name(name).ok_or_else(|| {
                Error::input("tensor", format!("tensor `{name}` is not one of a {} model", arch.name))
            })?;
            let dtype = match t.dtype {
                Dtype::F32 => TypeId::F32,
                Dtype::F16 => TypeId::F16,
                Dtype::BF16 => TypeId::BF16,
                other => {
                    return Err(Error::input("tensor type", format!("tensor `{name}` has type {other:?}"))
                        .with_hint("weights are F32, F16 or BF16 in a Hugging Face directory"));
                }
            };
            let (rows, cols) = match t.shape[..] {
                [cols] => (1, cols),
                [rows, cols] => (rows, cols),
                _ => {
                    return Err(Error::input(
                        "shape",
                        format!("tensor `{name}` has {} dimensions", t.shape.len()),
                    ));
                }
            };
            let offset = (t.data.as_ptr() as usize - base) as u64;
            self.entries.insert(gguf_name, WeightEntry { file, offset, rows, cols, dtype });
        }
        Ok(())
    }

    /// A tensor that the model cannot do without.
    ///
    /// # Errors
    /// `missing tensor`.
    pub fn require(&self, name: &str) -> Result<&WeightEntry> {
        self.entries
            .get(name)
            .ok_or_else(|| Error::input("missing tensor", format!("tensor `{name}` is missing")))
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, e: &WeightEntry) -> &[u8] {
        let layout = e.dtype.layout().expect("the reader checks types");
        let size = (e.rows * e.cols) as u64 / layout.block * layout.bytes;
        &self.files[e.file].as_ref()[e.offset as usize..][..size as usize]
    }
}
