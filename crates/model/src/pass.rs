//! One pass of a batch through the model.

use planish_compute::View;
use planish_tape::ops::{self, Attention, Rotary, Scores, Targets};
use planish_tape::{Tape, Var};

use crate::adapter::AdapterSet;
use crate::block::block;
use crate::kv::KvCache;
use crate::params::{LinearParams, Params};
use crate::spec::{Layer, LinearId, Role, Spec};

/// The inputs of a pass, uploaded before it runs.
#[derive(Clone, Copy, Debug)]
pub struct BatchViews {
    /// [n, 1] token ids.
    pub ids: View,
    /// [n, 1] position of each token in its sequence.
    pub positions: View,
    /// [segments, 4]: first row, rows, first position, KV slot.
    pub segments: View,
}

/// What a block needs beside its parameters.
pub struct Pass<'a> {
    /// Records the pass.
    pub tape: &'a mut Tape,
    /// Inputs.
    pub batch: BatchViews,
    spec: &'a Spec,
    params: &'a Params,
    adapters: &'a [&'a AdapterSet],
    kv: Option<&'a KvCache>,
    noise: Option<Noise>,
    layer: usize,
}

/// Noise on embeddings in passes that train (Jain et al., 2023).
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Its strength.
    pub alpha: f32,
    /// [1, 4] words: seed low, seed high, step, micro-batch.
    pub key: View,
}

impl<'a> Pass<'a> {
    /// A pass over `batch`. With `kv`, new keys and values are appended to the cache and attention sees all of it.
    pub fn new(
        tape: &'a mut Tape,
        batch: BatchViews,
        spec: &'a Spec,
        params: &'a Params,
        adapters: &'a [&'a AdapterSet],
        kv: Option<&'a KvCache>,
    ) -> Self {
        Pass { tape, batch, spec, params, adapters, kv, noise: None, layer: 0 }
    }

    /// The same pass with this noise.
    pub fn with_noise(self, noise: Option<Noise>) -> Self {
        Pass { noise, ..self }
    }

    /// Tokens to the normed last hidden state [n, d].
    pub fn hidden(&mut self) -> Var {
        let (spec, params) = (self.spec, self.params);
        let adapters = self.adapters_of(LinearId { layer: 0, role: Role::Embed });
        let mut x_nd = ops::embed(self.tape, self.batch.ids, &params.embedding, &adapters);
        if let Some((weight, bias)) = params.lens {
            let lens = ops::Linear { weight, bias: Some(bias), adapters: Vec::new() };
            x_nd = ops::linear(self.tape, x_nd, &[&lens]);
        }
        if let Some(noise) = self.noise {
            x_nd = ops::noise(self.tape, x_nd, self.batch.segments, noise.key, noise.alpha);
        }
        for (i, (s, p)) in spec.layers.iter().zip(&params.layers).enumerate() {
            self.layer = i;
            self.tape.begin_layer(i);
            x_nd = block(self, s, p, x_nd);
            self.tape.end_layer();
        }
        ops::norm(self.tape, x_nd, &params.norm)
    }

    /// Logits [m, v] of the given rows of the last hidden state; `rows` ascending.
    pub fn logits(&mut self, hidden: Var, rows: View) -> Var {
        let head = self.head();
        let chosen = ops::gather(self.tape, hidden, rows);
        let logits = ops::linear(self.tape, chosen, &[&head]);
        self.tape.keep(self.tape.view(logits));
        logits
    }

    /// Losses [m, 1] of the trained rows.
    pub fn loss(&mut self, hidden: Var, targets: &Targets) -> Var {
        ops::linear_cross_entropy(self.tape, hidden, &self.head(), targets)
    }

    /// Losses of the target rows and the `k` most probable tokens, without gradients.
    pub fn scores(&mut self, hidden: Var, targets: &Targets, k: usize) -> Scores {
        ops::linear_scores(self.tape, hidden, &self.head(), targets, k)
    }

    fn head(&self) -> ops::Linear {
        let adapters = self.adapters_of(LinearId { layer: 0, role: Role::Output });
        ops::Linear { weight: self.params.head, bias: None, adapters }
    }

    fn adapters_of(&self, id: LinearId) -> Vec<ops::Adapter> {
        self.adapters.iter().flat_map(|set| set.terms(id)).collect()
    }

    /// Linear maps of one input side by side, with the adapters this pass has for them.
    pub(crate) fn bank(&mut self, x: Var, maps: &[LinearParams]) -> Var {
        let maps: Vec<ops::Linear> = maps
            .iter()
            .map(|m| ops::Linear { weight: m.weight, bias: m.bias, adapters: self.adapters_of(m.id) })
            .collect();
        ops::linear(self.tape, x, &maps.iter().collect::<Vec<_>>())
    }

    pub(crate) fn rotary(&self, s: &Layer) -> Rotary {
        Rotary { table: self.params.rope, width: s.heads.width, style: self.spec.rope.style }
    }

    pub(crate) fn attend(&mut self, s: &Layer, q: Var, k: Var, v: Var) -> Var {
        let p = Attention { segments: self.batch.segments, heads: s.heads };
        match self.kv {
            Some(kv) => ops::attend_blocks(self.tape, q, k, v, &p, &kv.layer(self.layer)),
            None => ops::attend(self.tape, q, k, v, &p),
        }
    }
}
