//! A model whose weights were trained, as a GGUF file.

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::Backend;
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
/// # Errors
/// As [`check_exportable`]; `not finite` for a weight that is not a number; those of writing files.
pub fn write_model(engine: &Engine, out: &Path) -> Result<()> {
    let gguf = check_exportable(&engine.model)?;
    let trained: BTreeMap<&str, _> =
        engine.params.trainable().map(|n| (n.name.as_str(), n.param.view)).collect();
    let mut writer = Writer::new();
    writer.copy_metadata(gguf.metadata(), |_| true);
    if let Some(number) = file_type(TypeId::F32).filter(|_| !trained.is_empty()) {
        writer.set("general.file_type", OwnedValue::U32(number));
    }
    let lens = Lens::of(engine);
    let folded = |name: &str| lens.is_some() && name == "token_embd.weight";
    let infos: Vec<_> = gguf.tensors().iter().filter(|t| !lens::is_part(&t.name)).collect();
    for info in &infos {
        let whole = trained.contains_key(info.name.as_str()) || folded(&info.name);
        let ty = if whole { TypeId::F32 } else { info.ty };
        let spec = &engine.model.spec;
        let dims = [spec.width as u64, spec.vocab as u64];
        writer.tensor(&info.name, if folded(&info.name) { &dims } else { &info.dims }, ty)?;
    }
    writer.write(out, |i, sink| {
        let info = infos[i];
        if let Some(lens) = lens.as_ref().filter(|_| folded(&info.name)) {
            return lens.write(sink);
        }
        let Some(view) = trained.get(info.name.as_str()) else {
            return sink.write_all(gguf.data(info)).map_err(fs::write_failed);
        };
        let mut data = vec![0u8; view.span() as usize];
        engine.backend.download(view, &mut data);
        check_finite(&info.name, &data)?;
        sink.write_all(&data).map_err(fs::write_failed)
    })
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
