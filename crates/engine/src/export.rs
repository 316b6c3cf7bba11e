//! A model whose weights were trained, as a GGUF file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::call::RopeStyle;
use planish_compute::{Backend, View};
use planish_model::{Role, WeightEntry, head_of, interleave_rows};
use planish_store::fs;
use planish_store::gguf::{Gguf, OwnedValue, Writer};

use crate::engine::Engine;
use crate::lens::{self, Lens};
use crate::merge::file_type;
use crate::model::Model;

/// The GGUF file that a trained model takes its metadata from.
///
/// # Errors
/// `base` for a Hugging Face directory.
pub fn check_exportable(model: &Model) -> Result<&Gguf> {
    model.gguf.as_ref().ok_or_else(|| {
        Error::input("base", format!("{}: the base is not a GGUF file", model.path.display()))
            .with_hint("all weights can be trained of a GGUF file only; an adapter also of a directory")
    })
}

/// Writes the engine's weights to `out`, F32 where they are trained and as they are where not, with all metadata of
/// the file that they were loaded from; what a projection lens shows of its table becomes an ordinary embedding. The file
/// appears whole or not at all.
///
/// A file of toy becomes one that llama.cpp reads: heads are joined, the rows of q and k are in the order that the
/// family has in GGUF files, and toy's own keys are left out.
///
/// # Errors
/// As [`check_exportable`]; `not finite` for a weight that is not a number; those of writing files.
pub fn write_model(engine: &Engine, out: &Path) -> Result<()> {
    let (model, gguf) = (&engine.model, check_exportable(&engine.model)?);
    let trained: BTreeMap<&str, View> =
        engine.params.trainable().map(|n| (n.name.as_str(), n.param.view)).collect();
    let mut writer = Writer::new();
    writer.copy_metadata(gguf.metadata(), |key| !key.starts_with("toy."));
    if let Some(number) = file_type(TypeId::F32).filter(|_| !trained.is_empty()) {
        writer.set("general.file_type", OwnedValue::U32(number));
    }
    let (tensors, lens) = (written(model, gguf)?, Lens::of(engine));
    let folded = |name: &str| lens.as_ref().filter(|_| model.spec.is_kept(name));
    for t in &tensors {
        let whole = trained.contains_key(t.name.as_str()) || folded(&t.name).is_some();
        writer.tensor(&t.name, &t.dims, if whole { TypeId::F32 } else { t.entry.dtype })?;
    }
    writer.write(out, |i, sink| {
        let t = &tensors[i];
        if let Some(lens) = folded(&t.name) {
            return lens.write(sink);
        }
        let data = match trained.get(t.name.as_str()) {
            None => Cow::Borrowed(model.weights.bytes(t.entry)),
            Some(view) => {
                let mut data = vec![0u8; view.span() as usize];
                engine.backend.download(view, &mut data);
                check_finite(&t.name, &data)?;
                Cow::Owned(data)
            }
        };
        sink.write_all(&t.in_file_order(data)?).map_err(fs::write_failed)
    })
}

/// A tensor of the written file.
struct Written<'a> {
    name: String,
    /// As GGUF files have them.
    dims: Vec<u64>,
    entry: &'a WeightEntry,
    /// Width of the heads whose rows change their order.
    turned: Option<usize>,
}

impl Written<'_> {
    /// The rows as files of the family have them.
    fn in_file_order<'d>(&self, data: Cow<'d, [u8]>) -> Result<Cow<'d, [u8]>> {
        let Some(head_width) = self.turned else { return Ok(data) };
        // The rows of a bias are its values.
        let rows = self.dims.last().map_or(1, |n| *n as usize);
        if !data.len().is_multiple_of(rows) {
            let message =
                format!("tensor `{}` has blocks of several rows, which cannot be reordered", self.name);
            return Err(Error::input("tensor type", message));
        }
        Ok(Cow::Owned(interleave_rows(&data, rows, head_width)))
    }
}

/// The tensors of the file in its order, heads joined where the first of them lies.
fn written<'a>(model: &'a Model, gguf: &Gguf) -> Result<Vec<Written<'a>>> {
    let heads = model.spec.linears(&[Role::Q, Role::K]);
    let turns = model.arch.permuted && model.spec.rope.style == RopeStyle::Halves;
    let turned: BTreeMap<String, usize> = heads
        .into_iter()
        .filter(|_| turns)
        .map(|id| (model.arch.linear_name(id), model.spec.layers[id.layer].heads.width))
        .collect();
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for info in gguf.tensors().iter().filter(|t| !lens::is_part(&t.name)) {
        let joined = head_of(&info.name).map(|(name, _)| name);
        let name = joined.clone().unwrap_or_else(|| info.name.clone());
        if !seen.insert(name.clone()) {
            continue;
        }
        let entry = model.weights.require(&name)?;
        let dims = match (joined, info.dims.len()) {
            (None, _) if model.spec.is_kept(&name) => {
                vec![model.spec.width as u64, model.spec.vocab as u64]
            }
            (None, _) => info.dims.clone(),
            (Some(_), 1) => vec![entry.cols as u64],
            (Some(_), _) => vec![entry.cols as u64, entry.rows as u64],
        };
        let stem = name.rsplit_once('.').map_or("", |(stem, _)| stem);
        let turned = turned.get(stem).copied();
        all.push(Written { name, dims, entry, turned });
    }
    Ok(all)
}

/// Refuses f32 values that are not numbers: no file of ours holds one.
///
/// # Errors
/// `not finite`, with the name.
pub fn check_finite(name: &str, bytes: &[u8]) -> Result<()> {
    let value = |b: &[u8]| b.try_into().map_or(f32::NAN, f32::from_le_bytes);
    match bytes.chunks_exact(4).map(value).position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => {
            Err(Error::input("not finite", format!("tensor `{name}`: value {i} is not a finite number"))
                .with_hint("the training diverged: lower the rate"))
        }
    }
}
