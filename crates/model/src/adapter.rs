//! Low-rank adapters (Hu et al., 2022) as tables keyed by linear map; the base stays as it is.

mod pissa;
mod spec;

use std::collections::BTreeMap;

use planish_base::rng::{Purpose, Stream};
use planish_base::{Result, TypeId};
use planish_compute::call::RowNorms;
use planish_compute::{Backend, View};
use planish_tape::Param;
use planish_tape::ops::{Adapter, Dropout, Magnitude, Norms};

pub use self::spec::{AdapterSpec, InitLora, Layers};
use crate::params::Params;
use crate::spec::{LinearId, Role, Spec};

/// A pair of matrices and its scale.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// [rank, in].
    pub a: Param,
    /// [out, rank].
    pub b: Param,
    /// Factor on B A x.
    pub scale: f32,
    /// The norms of the rows of the adapted matrix, where these are trained apart (DoRA).
    pub magnitude: Option<Magnitude>,
}

/// The numbers of a pair on the host.
#[derive(Clone, Copy, Debug)]
pub struct PairValues<'a> {
    /// Rows of A, columns of B.
    pub rank: usize,
    /// [rank, in], row-major.
    pub a: &'a [f32],
    /// [out, rank], row-major.
    pub b: &'a [f32],
    /// Factor on B A x.
    pub scale: f32,
    /// \[out\].
    pub magnitude: Option<&'a [f32]>,
}

/// The pairs of one adapter. That of the embedding is as that of any matrix: table + scale B A, B with a row for each
/// token.
#[derive(Clone, Debug, Default)]
pub struct AdapterSet {
    pairs: BTreeMap<LinearId, Pair>,
    /// What the trained pairs began as, to be subtracted: training then begins at the base (PiSSA).
    origins: BTreeMap<LinearId, Pair>,
    dropout: Option<(f32, View)>,
}

impl AdapterSet {
    /// A trainable adapter: A uniform in +-1/sqrt(in) as PEFT initialises it (of the embedding standard normal), B zero,
    /// magnitudes the norms of the base's rows. With [`InitLora::Pissa`] both begin as parts of the base.
    ///
    /// # Errors
    /// Kind `Resource` without memory; kind `Usage` for a block that the model does not have.
    pub fn init(
        backend: &mut dyn Backend,
        spec: &Spec,
        params: &Params,
        adapter: &AdapterSpec,
        seed: u64,
    ) -> Result<AdapterSet> {
        let mut set = AdapterSet::default();
        for (i, id) in adapter.maps(spec)?.into_iter().enumerate() {
            let ((out, input), rank) = (spec.linear_shape(id), adapter.rank(id.role));
            let (scale, weight) = (adapter.scale(id.role), params.matrix(id));
            let (a, b) = match adapter.init {
                InitLora::Zero => (first_a(id, rank, input, seed, i as u32), vec![0.0; out * rank]),
                InitLora::Pissa => pissa::pair(backend, &weight, rank, scale, seed, i as u32)?,
            };
            let values = PairValues { rank, a: &a, b: &b, scale, magnitude: None };
            set.insert(backend, id, &values, true)?;
            if adapter.init == InitLora::Pissa {
                let origin = place(backend, &PairValues { scale: -scale, ..values }, false)?;
                set.origins.insert(id, origin);
            }
            if adapter.dora {
                let pair = set.pairs.get_mut(&id).expect("it was just inserted");
                let magnitude = magnitude(backend, out, None, true)?;
                row_norms(backend, &weight, pair, &magnitude.m.view);
                pair.magnitude = Some(magnitude);
            }
        }
        if adapter.dropout > 0.0 {
            let key = View::new(backend.alloc(16)?, 0, 1, 4, TypeId::I32);
            set.dropout = Some((adapter.dropout, key));
        }
        Ok(set)
    }

    /// Adds a pair.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn insert(
        &mut self,
        backend: &mut dyn Backend,
        id: LinearId,
        values: &PairValues,
        trainable: bool,
    ) -> Result<()> {
        let pair = place(backend, values, trainable)?;
        self.pairs.insert(id, pair);
        Ok(())
    }

    /// Computes the norms of adapted rows, which passes that do not train read where the adapter has magnitudes.
    pub fn refresh(&self, backend: &mut dyn Backend, params: &Params) {
        for (id, pair) in &self.pairs {
            if let Some(Magnitude { norms: Norms::Trained(norms), .. }) = &pair.magnitude {
                row_norms(backend, &params.matrix(*id), pair, norms);
            }
        }
    }

    /// The adapter of a matrix, as the tape takes it.
    pub fn of(&self, id: LinearId) -> Option<Adapter> {
        let pair = self.pairs.get(&id)?;
        // Two maps never share a dropout mask, and looking up a token is not a map.
        let stream = (id.layer * 16 + id.role as usize) as u32;
        let dropout = self.dropout.filter(|_| id.role != Role::Embed);
        let dropout = dropout.map(|(p, key)| Dropout { p, key, stream });
        Some(Adapter { a: pair.a, b: pair.b, scale: pair.scale, dropout, magnitude: pair.magnitude })
    }

    /// All that a pass adds to a matrix: its pair, less what that began as.
    pub fn terms(&self, id: LinearId) -> impl Iterator<Item = Adapter> {
        let origin = self.origins.get(&id);
        let (dropout, magnitude) = (None, None);
        let origin = origin.map(|p| Adapter { a: p.a, b: p.b, scale: p.scale, dropout, magnitude });
        self.of(id).into_iter().chain(origin)
    }

    /// All pairs, block by block.
    pub fn pairs(&self) -> impl Iterator<Item = (LinearId, &Pair)> {
        self.pairs.iter().map(|(id, p)| (*id, p))
    }

    /// What the pair of a matrix began as, with the factor that takes it away again.
    pub fn origin(&self, id: LinearId) -> Option<&Pair> {
        self.origins.get(&id)
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether a pair has a magnitude, so that no other adapter may be beside this one.
    pub fn rescales(&self) -> bool {
        self.pairs.values().any(|p| p.magnitude.is_some())
    }

    /// Where a training loop puts the dropout key of a micro-batch: seed low, seed high, step, micro-batch.
    pub fn dropout_key(&self) -> Option<View> {
        self.dropout.map(|(_, key)| key)
    }
}

/// A before the first step.
fn first_a(id: LinearId, rank: usize, input: usize, seed: u64, tensor: u32) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Init, tensor);
    let bound = 1.0 / (input as f64).sqrt();
    let value = |j: u64| match id.role {
        Role::Embed => stream.normal(j),
        _ => (2.0 * stream.uniform(j) - 1.0) * bound,
    };
    (0..(rank * input) as u64).map(|j| value(j) as f32).collect()
}

fn place(backend: &mut dyn Backend, p: &PairValues, trainable: bool) -> Result<Pair> {
    let (input, out) = (p.a.len() / p.rank, p.b.len() / p.rank);
    let a = matrix(backend, p.rank, input, Some(p.a), trainable)?;
    let b = matrix(backend, out, p.rank, Some(p.b), trainable)?;
    let magnitude = match p.magnitude {
        Some(m) => Some(magnitude(backend, out, Some(m), trainable)?),
        None => None,
    };
    Ok(Pair { a, b, scale: p.scale, magnitude })
}

fn magnitude(
    backend: &mut dyn Backend,
    out: usize,
    values: Option<&[f32]>,
    trainable: bool,
) -> Result<Magnitude> {
    let m = matrix(backend, 1, out, values, trainable)?;
    Ok(Magnitude { m, norms: Norms::Trained(matrix(backend, 1, out, None, false)?.view) })
}

fn matrix(
    backend: &mut dyn Backend,
    rows: usize,
    cols: usize,
    values: Option<&[f32]>,
    trainable: bool,
) -> Result<Param> {
    let bytes = (rows * cols * 4) as u64;
    let view = View::new(backend.alloc(bytes)?, 0, rows, cols, TypeId::F32);
    if let Some(values) = values {
        backend.upload_f32(&view, values);
    }
    let grad = match trainable {
        true => Some(View { home: backend.alloc(bytes)?, ..view }),
        false => None,
    };
    Ok(Param { view, grad })
}

fn row_norms(backend: &mut dyn Backend, weight: &View, pair: &Pair, norms: &View) {
    let (w, a, b, scale) = (*weight, pair.a.view, pair.b.view, pair.scale);
    backend.exec(&RowNorms { w, a, b, norms: *norms, scale }.into());
}
