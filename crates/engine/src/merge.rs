//! Adapters folded into their base: W + sum of scale B A, streamed into a whole GGUF file.
//!
//! One row of one tensor is in memory at a time. Products and sums are f32, adapters in the order given, ranks
//! ascending, so the same input gives the same bytes.
//!
//! With [`MergeType::Same`] a tensor that no adapter touches keeps its bytes, and one that is touched is encoded again
//! in its own type. A type that planish reads but does not write becomes Q8_0, which loses the least of all quantised
//! types; the report names each such tensor.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use planish_base::{Error, Result, TypeId};
use planish_compute::Isa;
use planish_compute::quant::{QUANTS, Quant};
use planish_model::LinearId;
use planish_store::fs;
use planish_store::gguf::{Gguf, OwnedValue, TensorInfo, Writer};

use crate::adapter::{AdapterFile, HostPair, check_together};
use crate::model::Model;

/// The types of the merged file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeType {
    /// As in the base.
    Same,
    /// All matrices of this type; vectors and norms are F32. A matrix whose rows are not whole blocks becomes F16.
    As(TypeId),
}

impl MergeType {
    /// Parses `same` or the name of a type that planish writes.
    ///
    /// # Errors
    /// Kind `Usage`, with the names.
    pub fn parse(text: &str) -> Result<MergeType> {
        if text.eq_ignore_ascii_case("same") {
            return Ok(MergeType::Same);
        }
        let ty = TypeId::by_name(text).filter(|ty| encodes(*ty));
        ty.map(MergeType::As).ok_or_else(|| not_written(text))
    }
}

/// What [`merge`] did.
#[derive(Clone, Debug, Default)]
pub struct MergeReport {
    /// Bytes of the file.
    pub bytes: u64,
    /// `general.file_type` of the file, where it has one.
    pub file_type: Option<u32>,
    /// Every tensor that an adapter touched, in the order of the file.
    pub touched: Vec<Touched>,
    /// Tensors that have another type than was asked for.
    pub fallbacks: Vec<Fallback>,
    /// The head was the embedding, and is a tensor of its own now, since adapters changed the two apart.
    pub untied: bool,
}

/// A tensor that an adapter changed.
#[derive(Clone, Debug)]
pub struct Touched {
    /// GGUF name.
    pub name: String,
    /// Norm of what was added, relative to that of the weights (Frobenius). Near 0: the adapter does nothing.
    pub change: f64,
}

/// A tensor whose type could not be had.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// GGUF name.
    pub name: String,
    /// The type asked for.
    pub wanted: TypeId,
    /// The type it got.
    pub got: TypeId,
    /// The reason.
    pub why: &'static str,
}

/// A tensor of the output.
struct Job<'a> {
    name: &'a str,
    /// What it is made of.
    info: &'a TensorInfo,
    ty: TypeId,
    /// Pairs with the factors that the user asked for.
    pairs: Vec<(&'a HostPair, f32)>,
}

/// Merges adapters, each with a factor of its own, into `out`, which appears whole or not at all. Metadata are
/// copied, tokenizer and template with them; `general.file_type` follows the tensors.
///
/// # Errors
/// `merge` for a base that is no GGUF file or an `out` that is the base; Kind `Usage` for a type that planish does not
/// write, and for an adapter with magnitudes beside others; `overflow` for a value that the type cannot hold; those of writing files.
pub fn merge(
    model: &Model,
    adapters: &[(AdapterFile, f32)],
    out: &Path,
    ty: MergeType,
) -> Result<MergeReport> {
    check_together(adapters.iter().map(|(file, _)| file))?;
    let gguf = model.gguf.as_ref().ok_or_else(|| {
        Error::input("merge", format!("{}: the base is not a GGUF file", model.path.display()))
            .with_hint("convert it first: planish convert DIRECTORY OUT.gguf")
    })?;
    if is_same(out, &model.path) {
        return Err(Error::usage("merge", format!("{}: the output is the base itself", out.display()))
            .with_hint("choose another name"));
    }
    if let MergeType::As(ty) = ty
        && !encodes(ty)
    {
        return Err(not_written(&ty.name()));
    }
    let mut report = MergeReport::default();
    let jobs = plan(model, gguf, adapters, ty, &mut report)?;
    let mut writer = Writer::new();
    writer.copy_metadata(gguf.metadata(), |_| true);
    report.file_type = set_types(&mut writer, gguf, &jobs, ty)?;
    for job in &jobs {
        writer.tensor(job.name, &job.info.dims, job.ty)?;
    }
    report.bytes = writer.size();
    writer.write(out, |i, sink| {
        let job = &jobs[i];
        if job.pairs.is_empty() && job.ty == job.info.ty {
            return sink.write_all(gguf.data(job.info)).map_err(fs::write_failed);
        }
        let change = stream(gguf, job, sink)?;
        if !job.pairs.is_empty() {
            report.touched.push(Touched { name: job.name.to_string(), change });
        }
        Ok(())
    })?;
    Ok(report)
}

fn encodes(ty: TypeId) -> bool {
    QUANTS.iter().any(|q| q.id == ty && q.encode.is_some())
}

/// Whether two paths are one file, however they are spelt or linked.
fn is_same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        // What does not exist yet is nothing else.
        _ => a == b,
    }
}

fn not_written(name: &str) -> Error {
    let known: Vec<String> = QUANTS.iter().filter(|q| q.encode.is_some()).map(|q| q.id.name()).collect();
    Error::usage("type", format!("tensors of type `{name}` are not written"))
        .with_hint(format!("types are same, {}", known.join(", ")))
}

fn plan<'a>(
    model: &Model,
    gguf: &'a Gguf,
    adapters: &'a [(AdapterFile, f32)],
    ty: MergeType,
    report: &mut MergeReport,
) -> Result<Vec<Job<'a>>> {
    let named = |id: LinearId| (format!("{}.weight", model.arch.linear_name(id)), id);
    let ids: BTreeMap<String, LinearId> = model.spec.adaptable().into_iter().map(named).collect();
    let changed = |id: &LinearId| adapters.iter().any(|(file, _)| file.pairs.contains_key(id));
    report.untied = model.spec.tied && ids.values().any(|id| id.role.is_table() && changed(id));
    let mut jobs = Vec::with_capacity(gguf.tensors().len());
    for info in gguf.tensors() {
        jobs.push(job(&info.name, info, ids.get(&info.name), adapters, ty, report)?);
        if report.untied && info.name == EMBEDDING {
            jobs.push(job(HEAD, info, ids.get(HEAD), adapters, ty, report)?);
        }
    }
    // An adapter of a tensor that the file lacks must not vanish without a word.
    for id in adapters.iter().flat_map(|(file, _)| file.pairs.keys()) {
        let (name, _) = named(*id);
        if !jobs.iter().any(|job| job.name == name) {
            return Err(Error::input("missing tensor", format!("tensor `{name}` is missing")));
        }
    }
    Ok(jobs)
}

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// The tensor `name` of the output, made of `info` of the base.
fn job<'a>(
    name: &'a str,
    info: &'a TensorInfo,
    id: Option<&LinearId>,
    adapters: &'a [(AdapterFile, f32)],
    ty: MergeType,
    report: &mut MergeReport,
) -> Result<Job<'a>> {
    let of = |(file, scale): &'a (AdapterFile, f32)| {
        let pair = file.pairs.get(id?)?;
        Some((pair, pair.scale * scale))
    };
    let pairs: Vec<_> = adapters.iter().filter_map(of).collect();
    if let Some((pair, _)) = pairs.iter().find(|(p, _)| info.dims != [p.inputs() as u64, p.outputs() as u64])
    {
        let (rows, cols) = (pair.outputs(), pair.inputs());
        let message =
            format!("tensor `{name}` has dimensions {:?}, the adapter is for {cols}, {rows}", info.dims);
        return Err(Error::input("shape", message));
    }
    let (wanted, got, why) = output_type(info, !pairs.is_empty(), ty);
    if let Some(why) = why {
        report.fallbacks.push(Fallback { name: name.to_string(), wanted, got, why });
    }
    Ok(Job { name, info, ty: got, pairs })
}

/// The type wanted, the type it will have, and why the two differ.
fn output_type(info: &TensorInfo, touched: bool, ty: MergeType) -> (TypeId, TypeId, Option<&'static str>) {
    match ty {
        MergeType::Same if touched && !encodes(info.ty) => {
            (info.ty, TypeId::Q8_0, Some("planish reads this type but does not write it"))
        }
        MergeType::Same => (info.ty, info.ty, None),
        // llama.cpp computes with norms and other vectors in F32 only.
        MergeType::As(_) if info.dims.len() < 2 || info.name.contains("norm") => {
            (TypeId::F32, TypeId::F32, None)
        }
        MergeType::As(ty) => {
            let whole = ty.layout().is_some_and(|l| info.dims[0].is_multiple_of(l.block));
            match whole {
                true => (ty, ty, None),
                false => (ty, TypeId::F16, Some("its rows are not whole blocks of the type")),
            }
        }
    }
}

/// Sets what metadata say about types. `general.file_type` is the type of most weights: it changes when that does.
fn set_types(writer: &mut Writer, gguf: &Gguf, jobs: &[Job], ty: MergeType) -> Result<Option<u32>> {
    if jobs.iter().any(|j| j.ty.layout().is_some_and(|l| l.block > 1)) {
        writer.set("general.quantization_version", OwnedValue::U32(2));
    }
    let before = gguf.metadata().u32("general.file_type")?;
    let most = |of: &dyn Fn(&Job) -> TypeId| {
        let mut elements: BTreeMap<TypeId, u64> = BTreeMap::new();
        for job in jobs.iter().filter(|j| j.info.dims.len() > 1) {
            *elements.entry(of(job)).or_default() += job.info.elements();
        }
        elements.into_iter().max_by_key(|(_, n)| *n).map(|(t, _)| t)
    };
    let after = match ty {
        MergeType::As(ty) => Some(ty),
        MergeType::Same => Some(most(&|j| j.ty)).filter(|t| *t != most(&|j| j.info.ty)).flatten(),
    };
    match after.and_then(file_type) {
        Some(number) => {
            writer.set("general.file_type", OwnedValue::U32(number));
            Ok(Some(number))
        }
        None => Ok(before),
    }
}

/// llama.cpp's `llama_ftype` of a file whose weights are mostly of this type.
pub(crate) fn file_type(ty: TypeId) -> Option<u32> {
    match ty {
        TypeId::F32 => Some(0),
        TypeId::F16 => Some(1),
        TypeId::Q4_0 => Some(2),
        TypeId::Q4_1 => Some(3),
        TypeId::Q8_0 => Some(7),
        TypeId::Q4_K => Some(15),
        TypeId::Q6_K => Some(18),
        TypeId::BF16 => Some(32),
        _ => None,
    }
}

/// Decodes, adds and encodes row by row. Returns the relative norm of what was added.
fn stream(gguf: &Gguf, job: &Job, sink: &mut dyn Write) -> Result<f64> {
    let name = job.name;
    let place = |e: Error| e.at(format!("tensor `{name}`"));
    let source = Quant::of(job.info.ty).map_err(place)?;
    let target = Quant::of(job.ty).map_err(place)?;
    let encode = target.encode.expect("the plan chooses types that are written");
    let cols = job.info.dims[0] as usize;
    let row_bytes = cols / source.block() * source.block_bytes();
    let mut row = vec![0f32; cols];
    let mut before = vec![0f32; cols];
    let mut bytes = vec![0u8; cols / target.block() * target.block_bytes()];
    let (mut weights, mut added) = (0f64, 0f64);
    for (r, from) in gguf.data(job.info).chunks_exact(row_bytes).enumerate() {
        (source.decode)(Isa::detect(), from, &mut row);
        if !job.pairs.is_empty() {
            before.copy_from_slice(&row);
            for (pair, scale) in &job.pairs {
                add_row(pair, *scale, r, &mut row);
                rescale_row(pair, r, &mut row);
            }
            for (b, a) in before.iter().zip(&row) {
                weights += f64::from(*b).powi(2);
                added += f64::from(a - b).powi(2);
            }
        }
        check_range(&row, job.ty).map_err(place)?;
        encode(&row, &mut bytes);
        sink.write_all(&bytes).map_err(fs::write_failed)?;
    }
    Ok((added / weights.max(f64::MIN_POSITIVE)).sqrt())
}

/// Brings row r to its magnitude, where the pair has one.
fn rescale_row(pair: &HostPair, r: usize, row: &mut [f32]) {
    let Some(magnitude) = &pair.magnitude else { return };
    let norm = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    // A row of zeros has no direction, and stays as it is.
    let factor = if norm == 0.0 { 0.0 } else { (f64::from(magnitude[r]) / norm) as f32 };
    row.iter_mut().for_each(|v| *v *= factor);
}

/// Adds row r of scale B A.
fn add_row(pair: &HostPair, scale: f32, r: usize, row: &mut [f32]) {
    let cols = row.len();
    let factors = &pair.b[r * pair.rank..(r + 1) * pair.rank];
    for (factor, a) in factors.iter().zip(pair.a.chunks_exact(cols)) {
        let factor = factor * scale;
        for (x, a) in row.iter_mut().zip(a) {
            *x += factor * a;
        }
    }
}

/// The largest finite number of a type: beyond it, encoding would give infinity.
fn check_range(row: &[f32], ty: TypeId) -> Result<()> {
    let limit = match ty {
        TypeId::F16 => 65_504.0,
        // A block's scale is a half: max / 127.
        TypeId::Q8_0 => 65_504.0 * 127.0,
        TypeId::BF16 => f32::from_bits(0x7f7f_0000),
        _ => f32::MAX,
    };
    match row.iter().find(|v| v.abs() > limit || v.is_nan()) {
        None => Ok(()),
        Some(v) if v.is_finite() => {
            let message = format!("the value {v} is beyond the {limit} that {} can hold", ty.name());
            Err(Error::input("overflow", message).with_hint("write a type of wider range: --type bf16"))
        }
        Some(v) => Err(Error::input("overflow", format!("the value {v} is not finite"))
            .with_hint("the base or the adapter is damaged")),
    }
}
