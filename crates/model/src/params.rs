//! The tensors of a model on a backend.

use std::collections::BTreeSet;
use std::sync::Arc;

use planish_base::{Error, Result, TypeId};
use planish_compute::quant::Quant;
use planish_compute::{Backend, Home, Isa, View};
use planish_tape::Param;
use planish_tape::ops::Norm;

use crate::arch::Arch;
use crate::rotary;
use crate::spec::{LinearId, Role, Spec};
use crate::weights::{WeightEntry, Weights};

/// Which tensors of the base get gradients. Those that do become f32 masters with a gradient beside them; the others
/// keep the file's bytes, memory-mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trainable {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// Those of these GGUF names.
    Matching(BTreeSet<String>),
}

impl Trainable {
    /// Whether the tensor of this GGUF name gets a gradient.
    pub fn holds(&self, name: &str) -> bool {
        match self {
            Trainable::Nothing => false,
            Trainable::Everything => true,
            Trainable::Matching(names) => names.contains(name),
        }
    }
}

/// A linear map of a block.
#[derive(Clone, Copy, Debug)]
pub struct LinearParams {
    /// Which one.
    pub id: LinearId,
    /// [out, in].
    pub weight: Param,
    /// [1, out].
    pub bias: Option<Param>,
}

/// The parameters of a block.
#[derive(Clone, Debug)]
pub struct LayerParams {
    /// Before attention.
    pub attn_norm: Norm,
    /// Query, key and value projections.
    pub qkv: [LinearParams; 3],
    /// Of each head's query and key, before they are rotated.
    pub qk_norm: Option<[Norm; 2]>,
    /// Attention output.
    pub out: LinearParams,
    /// Before the MLP.
    pub mlp_norm: Norm,
    /// Gate and up projections.
    pub gate_up: [LinearParams; 2],
    /// Down projection.
    pub down: LinearParams,
}

/// A tensor with its GGUF name.
#[derive(Clone, Debug)]
pub struct Named {
    /// GGUF name.
    pub name: String,
    /// Its values and gradient.
    pub param: Param,
}

/// All parameters of a model.
#[derive(Clone, Debug)]
pub struct Params {
    /// [vocabulary, width], or as wide as the lens reads.
    pub embedding: Param,
    /// From the width of the embedding to that of the model: weight [width, donor width] and bias [1, width].
    pub lens: Option<(Param, Param)>,
    /// Blocks.
    pub layers: Vec<LayerParams>,
    /// After the last block.
    pub norm: Norm,
    /// [vocabulary, width]; the embedding itself when tied.
    pub head: Param,
    /// [context, head width] cos and sin.
    pub rope: View,
    /// Every tensor once, by name.
    pub named: Vec<Named>,
}

impl Params {
    /// Builds the model's parameters for sequences of up to `context` tokens.
    ///
    /// # Errors
    /// Kind `Input` for a missing or unexpected tensor, a shape other than the spec's, or a type that cannot be
    /// computed with; kind `Resource` without memory.
    pub fn load(
        backend: &mut dyn Backend,
        arch: &Arch,
        spec: &Spec,
        weights: &Weights,
        trainable: &Trainable,
        context: usize,
    ) -> Result<Params> {
        let homes = weights.files.iter().map(|f| backend.import(Arc::new(f.clone()))).collect();
        let mut loader = Loader {
            backend,
            arch,
            spec,
            weights,
            trainable,
            homes,
            named: Vec::new(),
            used: BTreeSet::new(),
        };
        let (embedding, lens) = loader.embedding()?;
        let head = match spec.tied {
            true => embedding,
            false => loader.tensor("output.weight", spec.vocab, spec.width)?,
        };
        let norm = loader.norm("output_norm.weight", spec.width)?;
        let layers = (0..spec.layers.len()).map(|i| loader.layer(i)).collect::<Result<Vec<_>>>()?;
        loader.refuse_unused()?;
        let named = loader.named;
        let width = spec.layers.first().map_or(0, |l| l.heads.width);
        let table = rotary::table(&spec.rope, width, context);
        let rope = View::new(backend.alloc((table.len() * 4) as u64)?, 0, context, width, TypeId::F32);
        backend.upload_f32(&rope, &table);
        Ok(Params { embedding, lens, layers, norm, head, rope, named })
    }

    /// A matrix of the model.
    pub fn matrix(&self, id: LinearId) -> View {
        let layer = || &self.layers[id.layer];
        let param = match id.role {
            Role::Q => layer().qkv[0].weight,
            Role::K => layer().qkv[1].weight,
            Role::V => layer().qkv[2].weight,
            Role::O => layer().out.weight,
            Role::Gate => layer().gate_up[0].weight,
            Role::Up => layer().gate_up[1].weight,
            Role::Down => layer().down.weight,
            Role::Embed => self.embedding,
            Role::Output => self.head,
        };
        param.view
    }

    /// Every tensor that has a gradient.
    pub fn trainable(&self) -> impl Iterator<Item = &Named> {
        self.named.iter().filter(|n| n.param.grad.is_some())
    }
}

struct Loader<'a> {
    backend: &'a mut dyn Backend,
    arch: &'a Arch,
    spec: &'a Spec,
    weights: &'a Weights,
    trainable: &'a Trainable,
    homes: Vec<Home>,
    named: Vec<Named>,
    used: BTreeSet<String>,
}

impl Loader<'_> {
    /// The table, and the lens that looks at it. A lens exists so that the table stays as it is.
    fn embedding(&mut self) -> Result<(Param, Option<(Param, Param)>)> {
        let (name, vocab, width) = ("token_embd.weight", self.spec.vocab, self.spec.width);
        let Some(donor) = self.spec.lens else { return Ok((self.tensor(name, vocab, width)?, None)) };
        if self.spec.tied {
            return Err(Error::input("lens", "a model with a projection lens needs a head of its own"));
        }
        let table = self.tensor(name, vocab, donor)?;
        let lens = (self.tensor("lens.proj.weight", width, donor)?, self.tensor("lens.proj.bias", 1, width)?);
        Ok((table, Some(lens)))
    }

    fn layer(&mut self, layer: usize) -> Result<LayerParams> {
        let mut linear = |role| self.linear(LinearId { layer, role });
        let qkv = [linear(Role::Q)?, linear(Role::K)?, linear(Role::V)?];
        let (out, gate_up, down) =
            (linear(Role::O)?, [linear(Role::Gate)?, linear(Role::Up)?], linear(Role::Down)?);
        let (shape, width) = (&self.spec.layers[layer], self.spec.width);
        let mut norm = |part: &str, width| self.norm(&format!("blk.{layer}.{part}.weight"), width);
        let (attn_norm, mlp_norm) = (norm("attn_norm", width)?, norm("ffn_norm", width)?);
        let qk_norm = match shape.qk_norm {
            true => Some([norm("attn_q_norm", shape.heads.width)?, norm("attn_k_norm", shape.heads.width)?]),
            false => None,
        };
        Ok(LayerParams { attn_norm, qkv, qk_norm, out, mlp_norm, gate_up, down })
    }

    fn linear(&mut self, id: LinearId) -> Result<LinearParams> {
        let (out, input) = self.spec.linear_shape(id);
        let name = self.arch.linear_name(id);
        let weight = self.tensor(&format!("{name}.weight"), out, input)?;
        let bias_name = format!("{name}.bias");
        let bias = match self.weights.entries.contains_key(&bias_name) {
            true => Some(self.tensor(&bias_name, 1, out)?),
            false => None,
        };
        Ok(LinearParams { id, weight, bias })
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        let weight = Some(self.tensor(name, 1, width)?);
        Ok(Norm { weight, eps: self.spec.norm_eps, width })
    }

    fn tensor(&mut self, name: &str, rows: usize, cols: usize) -> Result<Param> {
        let e = self.weights.require(name)?;
        if (e.rows, e.cols) != (rows, cols) {
            let message = format!("tensor `{name}` is {} x {}, expected {rows} x {cols}", e.rows, e.cols);
            return Err(Error::input("shape", message)
                .with_hint("the file's metadata and tensors disagree; it may have been converted wrongly"));
        }
        Quant::of(e.dtype).map_err(|err| err.at(format!("tensor `{name}`")))?;
        self.used.insert(name.to_string());
        let param = self.place(name, e)?;
        self.named.push(Named { name: name.to_string(), param });
        Ok(param)
    }

    /// Vectors and trained tensors become f32 of our own; matrices that stay as they are keep the file's bytes.
    fn place(&mut self, name: &str, e: &WeightEntry) -> Result<Param> {
        let trains = self.trainable.holds(name) && !self.spec.is_kept(name);
        let aligned = !matches!(e.dtype, TypeId::F32) || e.offset.is_multiple_of(4);
        if !trains && aligned && (e.rows > 1 || e.dtype == TypeId::F32) {
            return Ok(Param::frozen(View::new(self.homes[e.file], e.offset, e.rows, e.cols, e.dtype)));
        }
        let bytes = (e.rows * e.cols * 4) as u64;
        let view = View::new(self.backend.alloc(bytes)?, 0, e.rows, e.cols, TypeId::F32);
        let mut values = vec![0f32; e.rows * e.cols];
        Quant::of(e.dtype)?.decode_range(Isa::detect(), self.weights.bytes(e), 0, &mut values);
        self.backend.upload_f32(&view, &values);
        let grad = match trains {
            true => Some(View { home: self.backend.alloc(bytes)?, ..view }),
            false => None,
        };
        Ok(Param { view, grad })
    }

    fn refuse_unused(&self) -> Result<()> {
        let known = |name: &String| self.used.contains(name) || self.arch.is_constant(name);
        match self.weights.entries.keys().find(|name| !known(name)) {
            Some(name) => {
                let message =
                    format!("tensor `{name}` is not one of a {} model of this shape", self.arch.name);
                Err(Error::input("unexpected tensor", message)
                    .with_hint("computing without it would give wrong results, so the file is refused"))
            }
            None => Ok(()),
        }
    }
}
