//! What a run trains and what it leaves for others to load: an adapter beside the frozen base, or the whole model.

use std::path::{Path, PathBuf};

use planish_base::Result;
use planish_engine::{
    AdapterFile, Binding, Engine, Model, ModelfileOptions, Provenance, check_exportable, modelfile,
    write_model,
};
use planish_model::{AdapterSet, AdapterSpec, Trainable, WeightEntry};

use crate::config::{Decay, RunConfig};
use crate::optim::{Class, Target, Tensor};
use crate::patterns;
use crate::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::weight_events::Initial;

/// What is trained.
pub(crate) enum Recipe {
    /// Pairs of small matrices (Hu et al., 2022); the base keeps its file's bytes.
    Lora {
        /// Its shape.
        spec: AdapterSpec,
        /// Its values.
        set: AdapterSet,
    },
    /// The weights themselves, as f32 masters: all, or those that patterns choose.
    Full,
}

impl Recipe {
    /// Which tensors of the base get gradients.
    ///
    /// # Errors
    /// Kind `Usage` for patterns that no tensor has, or that leave none to train.
    pub fn trainable(model: &Model, config: &RunConfig) -> Result<Trainable> {
        if config.full { patterns::trainable(model, config) } else { Ok(Trainable::Nothing) }
    }

    /// Makes what the recipe needs beside the base.
    ///
    /// # Errors
    /// `base` for a base of which all weights cannot be trained; kind `Resource` without memory.
    pub fn new(engine: &mut Engine, config: &RunConfig) -> Result<Recipe> {
        if config.full {
            check_exportable(&engine.model)?;
            return Ok(Recipe::Full);
        }
        let spec = config.adapter()?;
        let set = AdapterSet::init(&mut engine.backend, &engine.model.spec, &spec, config.seed)?;
        Ok(Recipe::Lora { spec, set })
    }

    /// What a run does that begins: it takes the values of the adapter that it starts from. One that goes on has its own.
    ///
    /// # Errors
    /// Those of reading the adapter, and for one of another shape.
    pub fn begin(&self, engine: &mut Engine, config: &RunConfig) -> Result<()> {
        let (Recipe::Lora { set, .. }, Some(path)) = (self, &config.init_adapter) else { return Ok(()) };
        let file = AdapterFile::read(path, &engine.model, Binding::Strict)?;
        file.upload(engine, set).map_err(|e| e.in_file(path))
    }

    /// Where the tensors begin, when they have just been made; their values are not yet those of a checkpoint.
    pub fn initial(&self, engine: &Engine, targets: &[Target]) -> Initial {
        match self {
            Recipe::Full => Initial::Base,
            Recipe::Lora { .. } => Initial::keep(engine, targets),
        }
    }

    /// Bytes of [`Recipe::initial`], before it is made.
    pub fn initial_bytes(&self, trainer: &Trainer) -> u64 {
        match self {
            Recipe::Full => 0,
            Recipe::Lora { .. } => trainer.weights().iter().map(|(_, v)| v.span()).sum(),
        }
    }

    /// The adapters that a pass applies.
    pub fn adapters(&self) -> Vec<&AdapterSet> {
        match self {
            Recipe::Lora { set, .. } => vec![set],
            Recipe::Full => Vec::new(),
        }
    }

    /// Every trained tensor, with the weight decay that applies to it.
    pub fn targets(&self, engine: &Engine, config: &RunConfig) -> Vec<Target> {
        let target = |name: String, param: planish_tape::Param| {
            let spared = config.decay == Decay::Matrices && param.view.rows == 1;
            let weight_decay = if spared { 0.0 } else { config.weight_decay as f32 };
            Target { class: class(&name), name, param, weight_decay }
        };
        match self {
            Recipe::Lora { set, .. } => set
                .pairs()
                .flat_map(|(id, pair)| [(id, "a", pair.a), (id, "b", pair.b)])
                .map(|(id, half, p)| target(format!("blk.{}.{}.lora_{half}", id.layer, id.role.name()), p))
                .collect(),
            Recipe::Full => engine.params.trainable().map(|n| target(n.name.clone(), n.param)).collect(),
        }
    }

    /// The adapter GGUF, or the whole model.
    ///
    /// # Errors
    /// Those of writing files, and for a value that is not finite.
    pub fn write_weights(&self, engine: &Engine, path: &Path) -> Result<()> {
        match self {
            Recipe::Lora { spec, set } => {
                let file = AdapterFile::from_set(engine, set, spec);
                file.write_gguf(&engine.model, path, &Provenance::default())
            }
            Recipe::Full => write_model(engine, path),
        }
    }

    /// What lies beside the weights of the last step: Modelfile, and for an adapter the PEFT directory, which is
    /// returned.
    ///
    /// # Errors
    /// Those of writing files.
    pub fn write_companions(&self, engine: &Engine, dir: &RunDir, step: usize) -> Result<Option<PathBuf>> {
        let model = &engine.model;
        let weights = format!("./weights/step_{step}.gguf");
        // The base may lie anywhere, and its path is absolute; the weights lie in the run.
        let base = model.path.to_string_lossy();
        let (from, adapter) = match self {
            Recipe::Lora { .. } => (base.as_ref(), Some(weights.as_str())),
            Recipe::Full => (weights.as_str(), None),
        };
        let options = ModelfileOptions { from, adapter, num_ctx: model.spec.context };
        dir.write_text("Modelfile", &modelfile(model, &options)?)?;
        let Recipe::Lora { spec, set } = self else { return Ok(None) };
        AdapterFile::from_set(engine, set, spec).write_peft(model, &dir.peft())?;
        Ok(Some(dir.peft()))
    }

    /// Memory that writing the weights takes: an adapter goes through host memory twice, of a model one tensor at a
    /// time does.
    pub fn export_bytes(&self, trainer: &Trainer) -> u64 {
        let spans = trainer.weights().into_iter().map(|(_, v)| v.span());
        match self {
            Recipe::Lora { .. } => 2 * spans.sum::<u64>(),
            Recipe::Full => spans.max().unwrap_or(0),
        }
    }

    /// The tensors that a run trains, before anything is loaded.
    ///
    /// # Errors
    /// As [`Recipe::trainable`]; kind `Usage` for an adapter's numbers out of range.
    pub fn tensors(model: &Model, config: &RunConfig) -> Result<Vec<Tensor>> {
        if config.full {
            let trainable = Self::trainable(model, config)?;
            let trained =
                |(name, _): &(&String, &WeightEntry)| trainable.holds(name) && !model.arch.is_constant(name);
            let tensor = |(name, e): (&String, &WeightEntry)| Tensor {
                rows: e.rows,
                cols: e.cols,
                class: class(name),
            };
            return Ok(model.weights.entries.iter().filter(trained).map(tensor).collect());
        }
        let adapter = config.adapter()?;
        let pair = |id| {
            let (out, input) = model.spec.linear_shape(id);
            [(adapter.rank, input), (out, adapter.rank)].map(|(rows, cols)| Tensor {
                rows,
                cols,
                class: Class::Map,
            })
        };
        Ok(model.spec.linears(&adapter.targets).into_iter().flat_map(pair).collect())
    }

    /// Values that a run trains, before anything is loaded.
    ///
    /// # Errors
    /// As [`Recipe::tensors`].
    pub fn trained(model: &Model, config: &RunConfig) -> Result<u64> {
        Ok(Self::tensors(model, config)?.iter().map(|t| t.elements() as u64).sum())
    }
}

/// What a tensor of the model is, by its GGUF name.
fn class(name: &str) -> Class {
    match name {
        "token_embd.weight" | "output.weight" => Class::Table,
        _ => Class::Map,
    }
}
