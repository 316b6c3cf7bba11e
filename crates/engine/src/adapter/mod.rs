//! Adapters on the host: read from and written to adapter GGUF files (llama.cpp) and PEFT directories, put on a
//! backend, taken from one.
//!
//! **Row order.** B's rows are the rows of the adapted matrix, and q and k have two orders of rows
//! (`planish_model::interleave_rows`). An [`AdapterFile`] is always in the order of the model it was read for; the
//! readers and writers translate: a PEFT directory is in Hugging Face order, an adapter GGUF in the order of the GGUF
//! that llama.cpp would load it beside.
//!
//! **Scale.** Each pair has its own factor on B A x. An adapter GGUF states one alpha for all pairs, factor = alpha /
//! rank; a pair with another factor (PEFT's `alpha_pattern`) has the ratio folded into B when a GGUF is written.

mod config;
mod gguf;
mod peft;

use std::collections::BTreeMap;
use std::path::Path;

use planish_base::{Error, Result};
use planish_compute::Backend;
use planish_compute::call::RopeStyle;
use planish_model::{
    AdapterSet, AdapterSpec, InitLora, LinearId, Pair, PairValues, ROLES, Role, TABLES, halve_rows,
    interleave_rows,
};
use planish_store::fs;
use planish_store::gguf::{Gguf, OwnedValue};
use planish_tape::Param;

use crate::engine::Engine;
use crate::model::Model;

/// Relative difference within which two factors are the same: they went through a few roundings to f32.
const SAME_SCALE: f64 = 1e-6;

/// One pair: the adapted matrix is W + scale B A, the embedding too; B has a row for each row of W.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPair {
    /// Rows of A, columns of B.
    pub rank: usize,
    /// [rank, in].
    pub a: Vec<f32>,
    /// [out, rank].
    pub b: Vec<f32>,
    /// The factor.
    pub scale: f32,
    /// \[out\]: what the norms of the rows of W + scale B A are brought to (DoRA).
    pub magnitude: Option<Vec<f32>>,
}

impl HostPair {
    /// Width of the input.
    pub fn inputs(&self) -> usize {
        self.a.len() / self.rank
    }

    /// Width of the output.
    pub fn outputs(&self) -> usize {
        self.b.len() / self.rank
    }

    /// Its numbers, with this factor on the scale.
    fn values(&self, user_scale: f32) -> PairValues<'_> {
        let (a, b, magnitude) = (&self.a, &self.b, self.magnitude.as_deref());
        PairValues { rank: self.rank, a, b, scale: self.scale * user_scale, magnitude }
    }
}

/// What an adapter file says about the model it belongs to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BaseInfo {
    /// A name, or a repository of the Hugging Face hub.
    pub name: Option<String>,
    /// SHA-256 of its weights' file ([`Model::sha256`]).
    pub sha256: Option<String>,
}

/// Whether an adapter may be used with a base whose file is not the very one it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A base with another hash is an error. Adapters that name no hash pass.
    Strict,
    /// Shapes and names are enough: the same model in another type or conversion.
    Loose,
}

/// What to write into an adapter GGUF beside the adapter.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// `general.name`; none: the base's name with `-lora`.
    pub name: Option<String>,
    /// Further keys, such as `general.dataset.0.name`.
    pub keys: Vec<(String, OwnedValue)>,
}

/// A whole adapter in host memory, its rows in the order of the model it was read for.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// As an adapter GGUF states it: factor = alpha / rank, or 1 when alpha is 0.
    pub alpha: f32,
    /// The factor came from alpha / sqrt(rank) (rsLoRA); PEFT directories are written so again.
    pub rslora: bool,
    /// The pairs.
    pub pairs: BTreeMap<LinearId, HostPair>,
    /// The model it belongs to.
    pub base: BaseInfo,
}

/// An adapter as it lies in a file, before it is bound to a model. Pairs are keyed by the name of the adapted matrix
/// as the file spells it, without `.weight`.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) alpha: f32,
    pub(crate) rslora: bool,
    pub(crate) pairs: BTreeMap<String, HostPair>,
    pub(crate) base: BaseInfo,
    /// `general.architecture`; a PEFT directory does not say.
    pub(crate) arch: Option<String>,
}

/// Reads an adapter of either kind without a base.
pub(crate) fn read_raw(path: &Path) -> Result<Raw> {
    match fs::is_dir(path) {
        true => peft::read(path),
        false => {
            let file = Gguf::open(path)?;
            gguf::read(&file).map_err(|e| e.in_file(path))
        }
    }
}

impl AdapterFile {
    /// Reads an adapter GGUF or a PEFT directory for `model`.
    ///
    /// # Errors
    /// Kind `Input`, with the path: `adapter` for an adapter of another model (architecture, names, shapes, and with
    /// [`Binding::Strict`] the hash of the base), incomplete pairs, and what planish does not apply (trained
    /// biases or whole modules, aLoRA); else those of the file formats.
    pub fn read(path: &Path, model: &Model, binding: Binding) -> Result<AdapterFile> {
        let raw = read_raw(path)?;
        Self::bind(raw, path, model, binding).map_err(|e| e.in_file(path))
    }

    fn bind(raw: Raw, path: &Path, model: &Model, binding: Binding) -> Result<AdapterFile> {
        if let Some(arch) = raw.arch.as_deref().filter(|a| *a != model.arch.name) {
            let message = format!("the adapter is for `{arch}`, the base is `{}`", model.arch.name);
            return Err(other_base(message, &raw.base));
        }
        let is_peft = fs::is_dir(path);
        let names: BTreeMap<String, LinearId> = model
            .spec
            .adaptable()
            .into_iter()
            .map(|id| (if is_peft { hf_module(model, id) } else { model.arch.linear_name(id) }, id))
            .collect();
        let order = if is_peft { peft_order(model) } else { gguf_order(model) };
        let mut pairs = BTreeMap::new();
        for (name, mut pair) in raw.pairs {
            let id = *names.get(&name).ok_or_else(|| unknown_name(&name, model, &raw.base))?;
            let (out, input) = model.spec.linear_shape(id);
            if (pair.outputs(), pair.inputs()) != (out, input) {
                let (b_out, a_in) = (pair.outputs(), pair.inputs());
                let message = format!(
                    "the pair of `{name}` is for a matrix of {b_out} x {a_in}, that of the base is {out} x {input}"
                );
                return Err(other_base(message, &raw.base));
            }
            let style = model.spec.rope.style;
            pair.b = reorder(model, id, pair.b, order, style);
            pair.magnitude = pair.magnitude.map(|m| reorder(model, id, m, order, style));
            pairs.insert(id, pair);
        }
        // Last, since it may read the whole base: a base of another shape has a better message.
        if let (Some(hash), Binding::Strict) = (&raw.base.sha256, binding)
            && hash != model.sha256()
        {
            let message = format!(
                "the adapter was made for the file with SHA-256 {}.., the base {} has {}..",
                shorten(hash),
                model.path.display(),
                shorten(model.sha256())
            );
            return Err(other_base(message, &raw.base));
        }
        Ok(AdapterFile { alpha: raw.alpha, rslora: raw.rslora, pairs, base: raw.base })
    }

    /// Puts the pairs on the engine's backend, frozen. `user_scale` multiplies every factor.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn attach(&self, engine: &mut Engine, user_scale: f32) -> Result<AdapterSet> {
        let mut set = AdapterSet::default();
        for (&id, p) in &self.pairs {
            set.insert(&mut engine.backend, id, &p.values(user_scale), false)?;
        }
        set.refresh(&mut engine.backend, &engine.params);
        Ok(set)
    }

    /// Overwrites the values of a set that is on the backend already, as training does that starts from an adapter.
    ///
    /// # Errors
    /// `adapter` when the set has other pairs, ranks or factors.
    pub fn upload(&self, engine: &mut Engine, set: &AdapterSet) -> Result<()> {
        if !set.pairs().map(|(id, _)| id).eq(self.pairs.keys().copied()) {
            return Err(Error::input("adapter", "the adapter has pairs for other maps than the run trains")
                .with_hint(format!("train with --targets {}", target_names(self))));
        }
        for (id, pair) in set.pairs() {
            let p = &self.pairs[&id];
            if p.rank != pair.a.view.rows || !same(f64::from(p.scale), f64::from(pair.scale)) {
                let message = format!(
                    "the adapter has rank {} and factor {} at {}, the run rank {} and factor {}",
                    p.rank,
                    p.scale,
                    engine.model.arch.linear_name(id),
                    pair.a.view.rows,
                    pair.scale
                );
                return Err(
                    Error::input("adapter", message).with_hint("use the adapter's --rank and --alpha")
                );
            }
            match (pair.magnitude, &p.magnitude) {
                (Some(to), Some(m)) => engine.backend.upload_f32(&to.m.view, m),
                (None, None) => {}
                (to, _) => {
                    let (has, wants) = if to.is_some() { ("no", "one") } else { ("a", "none") };
                    let message = format!("the adapter has {has} magnitude at {id}, the run wants {wants}");
                    return Err(Error::input("adapter", message)
                        .with_hint("--dora goes with an adapter that was trained with it"));
                }
            }
            engine.backend.upload_f32(&pair.a.view, &p.a);
            engine.backend.upload_f32(&pair.b.view, &p.b);
        }
        Ok(())
    }

    /// Takes a set from the backend. A pair that began as a part of the base (PiSSA) becomes one of twice the rank, which
    /// gives the same on the base as it is: scale (B A - B0 A0).
    pub fn from_set(engine: &Engine, set: &AdapterSet, spec: &AdapterSpec) -> AdapterFile {
        let get = |p: &Param| engine.backend.download_f32(&p.view);
        let of = |(id, pair): (LinearId, &Pair)| {
            let (mut rank, mut a, mut b) = (pair.a.view.rows, get(&pair.a), get(&pair.b));
            if let Some(origin) = set.origin(id) {
                let less: Vec<f32> = get(&origin.b).into_iter().map(|v| -v).collect();
                b = b.chunks(rank).zip(less.chunks(rank)).flat_map(|(b, less)| [b, less].concat()).collect();
                a.extend(get(&origin.a));
                rank *= 2;
            }
            let magnitude = pair.magnitude.map(|m| get(&m.m));
            (id, HostPair { rank, a, b, scale: pair.scale, magnitude })
        };
        let pairs = set.pairs().map(of).collect();
        let halves = if spec.init == InitLora::Pissa { 2.0 } else { 1.0 };
        let alpha = halves * file_alpha(spec.alpha, spec.rank, spec.rslora);
        let base = BaseInfo { name: Some(base_name(&engine.model)), sha256: None };
        AdapterFile { alpha, rslora: spec.rslora, pairs, base }
    }

    /// Why llama.cpp could not apply this adapter, if so: it must be merged into its base for it.
    pub fn gguf_obstacle(&self, model: &Model) -> Option<&'static str> {
        let has = |role| self.pairs.keys().any(|id| id.role == role);
        gguf_obstacle(model.spec.tied, self.rescales(), &has)
    }

    /// Whether a pair has a magnitude.
    pub fn rescales(&self) -> bool {
        self.pairs.values().any(|p| p.magnitude.is_some())
    }

    /// Writes an adapter GGUF, atomically: llama.cpp's names, F32, and the hash of the base.
    ///
    /// # Errors
    /// `adapter` when a value is not finite, or llama.cpp could not apply the adapter; those of the GGUF writer.
    pub fn write_gguf(&self, model: &Model, path: &Path, provenance: &Provenance) -> Result<()> {
        self.check_finite(model)?;
        if let Some(why) = self.gguf_obstacle(model) {
            return Err(Error::input("adapter", format!("llama.cpp cannot apply the adapter: {why}"))
                .with_hint("merge it into its base with planish merge, or write a PEFT directory"));
        }
        gguf::write(self, model, path, provenance)
    }

    /// Writes a PEFT directory (`adapter_config.json`, `adapter_model.safetensors`). A new directory appears whole or
    /// not at all; in one that exists each of the two files is replaced whole.
    ///
    /// # Errors
    /// `adapter` when a value is not finite; those of writing files.
    pub fn write_peft(&self, model: &Model, dir: &Path) -> Result<()> {
        self.check_finite(model)?;
        peft::write(self, model, dir)
    }

    /// The roles that any pair has, in the order of a block.
    pub fn roles(&self) -> Vec<Role> {
        ROLES.into_iter().chain(TABLES).filter(|r| self.pairs.keys().any(|id| id.role == *r)).collect()
    }

    fn check_finite(&self, model: &Model) -> Result<()> {
        let bad = |p: &HostPair| {
            let magnitude = p.magnitude.iter().flatten();
            p.a.iter().chain(&p.b).chain(magnitude).any(|v| !v.is_finite()) || !p.scale.is_finite()
        };
        match self.pairs.iter().find(|(_, p)| bad(p)) {
            None => Ok(()),
            Some((id, _)) => {
                let name = model.arch.linear_name(*id);
                let message = format!("the pair of `{name}` holds a value that is not finite");
                Err(Error::input("adapter", message).with_hint("the training diverged: lower the rate"))
            }
        }
    }
}

/// Why llama.cpp could not apply an adapter of a model, if so.
pub fn gguf_obstacle(tied: bool, rescales: bool, has: &dyn Fn(Role) -> bool) -> Option<&'static str> {
    match (rescales, tied) {
        (true, _) => Some("it knows no magnitudes (DoRA)"),
        (_, true) if has(Role::Output) => {
            Some("the model's head is its embedding, and has no name of its own")
        }
        (_, true) if has(Role::Embed) => {
            Some("the model's head is its embedding, and it aborts where it applies the pair to the head")
        }
        _ => None,
    }
}

/// Refuses an adapter with magnitudes beside others: what each of them means is relative to the base alone.
///
/// # Errors
/// Kind `Usage`, with what to do.
pub fn check_together<'a>(files: impl ExactSizeIterator<Item = &'a AdapterFile>) -> Result<()> {
    if files.len() > 1 && { files }.any(AdapterFile::rescales) {
        return Err(Error::usage(
            "adapter",
            "an adapter with magnitudes (DoRA) cannot be beside another one",
        )
        .with_hint("merge it into the base first: planish merge"));
    }
    Ok(())
}

/// [cols, rows] of [rows, cols].
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| values.iter().skip(c).step_by(cols).copied()).collect()
}

/// The factor that an adapter GGUF means.
fn gguf_scale(alpha: f32, rank: usize) -> f32 {
    if alpha == 0.0 { 1.0 } else { alpha / rank as f32 }
}

/// The alpha of an adapter GGUF, which knows no rsLoRA.
fn file_alpha(alpha: f32, rank: usize, rslora: bool) -> f32 {
    if rslora { (f64::from(alpha) * (rank as f64).sqrt()) as f32 } else { alpha }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME_SCALE * a.abs().max(b.abs())
}

/// The order of rows in an adapter GGUF. A GGUF base that keeps q and k as Hugging Face does (files of toy) has its
/// adapters in that same order; a Hugging Face base has them in the order of its converted file.
fn gguf_order(model: &Model) -> RopeStyle {
    match model.gguf {
        Some(_) => model.spec.rope.style,
        None if model.arch.permuted => RopeStyle::Interleaved,
        None => RopeStyle::Halves,
    }
}

/// The order of rows in a PEFT directory. Only families whose rows are permuted have two.
fn peft_order(model: &Model) -> RopeStyle {
    if model.arch.permuted { RopeStyle::Halves } else { model.spec.rope.style }
}

/// Brings the rows of B from one order to another.
fn reorder(model: &Model, id: LinearId, b: Vec<f32>, from: RopeStyle, to: RopeStyle) -> Vec<f32> {
    if from == to || !matches!(id.role, Role::Q | Role::K) {
        return b;
    }
    let rows = model.spec.linear_shape(id).0;
    let width = model.spec.layers[id.layer].heads.width;
    match to {
        RopeStyle::Interleaved => interleave_rows(&b, rows, width),
        RopeStyle::Halves => halve_rows(&b, rows, width),
    }
}

/// The path of a linear map in a Hugging Face model: `model.layers.0.self_attn.q_proj`.
fn hf_module(model: &Model, id: LinearId) -> String {
    let name = model.arch.hf_name(&format!("{}.weight", model.arch.linear_name(id)));
    let name = name.expect("every linear map has a Hugging Face name");
    name.strip_suffix(".weight").map_or(name.clone(), str::to_string)
}

/// What to call the base in adapters: its hub repository where the file says so, else its name.
fn base_name(model: &Model) -> String {
    let key = |key: &str| model.metadata().and_then(|m| m.str(key).ok().flatten()).map(str::to_string);
    let hub = |url: String| url.strip_prefix("https://huggingface.co/").map(str::to_string);
    key("general.source.huggingface.repository")
        .or_else(|| key("general.source.repo_url").and_then(hub))
        .or_else(|| key("general.repo_url").and_then(hub))
        .unwrap_or_else(|| model.name())
}

fn other_base(message: String, base: &BaseInfo) -> Error {
    let whose = match &base.name {
        Some(name) => format!("the adapter belongs to another base model: `{name}`"),
        None => "the adapter belongs to another base model".to_string(),
    };
    let hash_only = message.contains("SHA-256");
    let rest = match hash_only {
        true => "; if this is the same model in another type or conversion, allow it explicitly",
        false => "; give the one it was trained on",
    };
    Error::input("adapter", message).with_hint(whose + rest)
}

fn unknown_name(name: &str, model: &Model, base: &BaseInfo) -> Error {
    let last = name.rsplit('.').next().unwrap_or(name);
    let message = format!("the adapter has a pair for `{name}`, which planish does not adapt");
    if last.contains("norm") {
        return Error::input("adapter", message)
            .with_hint("llama.cpp ignores adapters of norms, so the result would not be what was trained");
    }
    let blocks = model.spec.layers.len();
    other_base(format!("the base of {blocks} blocks has no matrix `{name}`"), base)
}

fn target_names(file: &AdapterFile) -> String {
    file.roles().into_iter().map(Role::name).collect::<Vec<_>>().join(",")
}

/// The first digits of a hash.
fn shorten(hash: &str) -> String {
    hash.chars().take(12).collect()
}
