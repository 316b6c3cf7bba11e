//! What a run trains and what it leaves for others to load: an adapter beside the frozen base, or the whole model.

use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_engine::{
    AdapterFile, Binding, Engine, MergeType, Model, ModelfileOptions, Provenance, check_exportable,
    gguf_obstacle, merge, modelfile, write_model,
};
use planish_model::{AdapterSet, AdapterSpec, InitLora, LinearId, Role, Spec, Trainable, WeightEntry};
use planish_tape::Param;

use crate::config::{Decay, RunConfig};
use crate::optim::{Class, Target, Tensor};
use crate::patterns;
use crate::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::weight_events::Initial;

/// What is trained.
#[allow(clippy::large_enum_variant)] // a run has one
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
        if let (Some(why), None) = (obstacle(&engine.model, &spec), &engine.model.gguf) {
            let path = engine.model.path.display();
            let message =
                format!("{path}: its adapter must be merged, since llama.cpp cannot apply it: {why}");
            return Err(Error::input("base", message).with_hint("start from a GGUF file"));
        }
        let set =
            AdapterSet::init(&mut engine.backend, &engine.model.spec, &engine.params, &spec, config.seed)?;
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

    /// What the user should know of the files that the run will write.
    pub fn note(&self, engine: &Engine) -> Option<String> {
        let Recipe::Lora { spec, .. } = self else { return None };
        let why = obstacle(&engine.model, spec)?;
        Some(format!(
            "llama.cpp cannot apply the adapter: {why}. The weights are written as base and adapter merged, and \
             the adapter alone as a PEFT directory"
        ))
    }

    /// Every trained tensor, with the weight decay that applies to it.
    pub fn targets(&self, engine: &Engine, config: &RunConfig) -> Vec<Target> {
        let target = |name: String, param: Param, class: Class, rate: f32| {
            let spared = config.decay == Decay::Matrices && param.view.rows == 1;
            let weight_decay = if spared { 0.0 } else { config.weight_decay as f32 };
            Target { class, name, param, weight_decay, rate }
        };
        match self {
            Recipe::Lora { set, .. } => set
                .pairs()
                .flat_map(|(id, pair)| {
                    let magnitude = pair.magnitude.map(|m| (Half::Magnitude, m.m));
                    let halves = [(Half::A, pair.a), (Half::B, pair.b)].into_iter().chain(magnitude);
                    halves.map(move |(half, p)| (id, half, p))
                })
                .map(|(id, half, p)| {
                    let name = format!("{id}.lora_{}", half.name());
                    target(name, p, half.class(id.role), half.rate(id.role, config.b_rate()))
                })
                .collect(),
            Recipe::Full => engine
                .params
                .trainable()
                .map(|n| target(n.name.clone(), n.param, class(&n.name), 1.0))
                .collect(),
        }
    }

    /// The adapter GGUF, or the whole model: the trained one, or base and adapter where llama.cpp could not apply that.
    ///
    /// # Errors
    /// Those of writing files, and for a value that is not finite.
    pub fn write_weights(&self, engine: &Engine, path: &Path) -> Result<()> {
        match self {
            Recipe::Lora { spec, set } => {
                let (file, model) = (AdapterFile::from_set(engine, set, spec), &engine.model);
                match obstacle(model, spec) {
                    None => file.write_gguf(model, path, &Provenance::default()),
                    Some(_) => merge(model, &[(file, 1.0)], path, MergeType::Same).map(|_| ()),
                }
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
            Recipe::Lora { spec, .. } if obstacle(model, spec).is_none() => {
                (base.as_ref(), Some(weights.as_str()))
            }
            _ => (weights.as_str(), None),
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
            Recipe::Lora { spec, .. } => 2 * written_ranks(spec) * spans.sum::<u64>(),
            Recipe::Full => spans.max().unwrap_or(0),
        }
    }

    /// Bytes on the disk of the weights that others load, at most.
    pub fn weights_bytes(&self, engine: &Engine, trained: u64) -> u64 {
        let model = &engine.model;
        let spec = match self {
            Recipe::Lora { spec, .. } => spec,
            Recipe::Full => return 4 * (trained + folded(&model.spec)),
        };
        match obstacle(model, spec) {
            None => 4 * written_ranks(spec) * trained,
            // Of types that are not written, matrices become Q8_0; a head of its own may come.
            Some(_) => model.weight_bytes() + 9 * model.spec.parameters() / 8,
        }
    }

    /// The tensors that a run trains, before anything is loaded.
    ///
    /// # Errors
    /// As [`Recipe::trainable`]; kind `Usage` for an adapter's numbers out of range.
    pub fn tensors(model: &Model, config: &RunConfig) -> Result<Vec<Tensor>> {
        if config.full {
            let trainable = Self::trainable(model, config)?;
            let kept = |name: &str| model.arch.is_constant(name) || model.spec.is_kept(name);
            let trained = |(name, _): &(&String, &WeightEntry)| trainable.holds(name) && !kept(name);
            let tensor = |(name, e): (&String, &WeightEntry)| Tensor {
                rows: e.rows,
                cols: e.cols,
                class: class(name),
            };
            return Ok(model.weights.entries.iter().filter(trained).map(tensor).collect());
        }
        let adapter = config.adapter()?;
        let pair = |id: LinearId| {
            let ((out, input), rank) = (model.spec.linear_shape(id), adapter.rank(id.role));
            let magnitude = adapter.dora.then_some((Half::Magnitude, 1, out));
            let halves = [(Half::A, rank, input), (Half::B, out, rank)].into_iter().chain(magnitude);
            halves.map(move |(half, rows, cols)| Tensor { rows, cols, class: half.class(id.role) })
        };
        Ok(adapter.maps(&model.spec)?.into_iter().flat_map(pair).collect())
    }

    /// Values that a run trains, before anything is loaded.
    ///
    /// # Errors
    /// As [`Recipe::tensors`].
    pub fn trained(model: &Model, config: &RunConfig) -> Result<u64> {
        Ok(Self::tensors(model, config)?.iter().map(|t| t.elements() as u64).sum())
    }
}

/// Values of the embedding that a projection lens becomes in files.
fn folded(spec: &Spec) -> u64 {
    spec.lens.map_or(0, |_| (spec.vocab * spec.width) as u64)
}

/// A trained part of an adapter's pair.
#[derive(Clone, Copy)]
enum Half {
    A,
    B,
    Magnitude,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Half::A => "a",
            Half::B => "b",
            Half::Magnitude => "magnitude",
        }
    }

    /// B of a table has a row for each token.
    fn class(self, role: Role) -> Class {
        match self {
            Half::B if role.is_table() => Class::Table,
            _ => Class::Map,
        }
    }

    /// Its learning rate, given that of B. As in PEFT, magnitudes go with B; the pair of the
    /// embedding, whose input has no width, has the usual rate.
    fn rate(self, role: Role, b_rate: f32) -> f32 {
        match self {
            Half::B | Half::Magnitude if role != Role::Embed => b_rate,
            _ => 1.0,
        }
    }
}

/// Why llama.cpp could not apply an adapter of this shape, if so.
fn obstacle(model: &Model, spec: &AdapterSpec) -> Option<&'static str> {
    gguf_obstacle(model.spec.tied, spec.dora, &|role| spec.targets.contains(&role))
}

/// Ranks in an adapter's file for each that is trained.
fn written_ranks(spec: &AdapterSpec) -> u64 {
    if spec.init == InitLora::Pissa { 2 } else { 1 }
}

/// What a tensor of the model is, by its GGUF name.
fn class(name: &str) -> Class {
    match name {
        "token_embd.weight" | "output.weight" => Class::Table,
        _ => Class::Map,
    }
}
