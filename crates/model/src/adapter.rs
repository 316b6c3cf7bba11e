//! Low-rank adapters (Hu et al., 2022) as tables keyed by linear map; the base stays as it is.

use std::collections::BTreeMap;

use planish_base::rng::{Purpose, Stream};
use planish_base::{Error, Result, TypeId};
use planish_compute::{Backend, View};
use planish_tape::Param;
use planish_tape::ops::{Adapter, Dropout};

use crate::spec::{LinearId, Role, Spec};

/// What an adapter is, without its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSpec {
    /// Rank of every pair.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Scale alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski, 2023).
    pub rslora: bool,
    /// Which linear maps have a pair.
    pub targets: Vec<Role>,
    /// Dropout of the pair's input while training.
    pub dropout: f32,
}

impl AdapterSpec {
    /// The factor on B A x.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// # Errors
    /// Kind `Usage` for a rank, alpha or dropout out of range.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::usage("adapter", what));
        if !(1..=4096).contains(&self.rank) {
            return bad(format!("rank {} is not from 1 to 4096", self.rank));
        }
        if !self.alpha.is_finite() || self.alpha <= 0.0 {
            return bad(format!("alpha {} is not a positive number", self.alpha));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return bad(format!("dropout {} is not in [0, 1)", self.dropout));
        }
        Ok(())
    }
}

/// A pair of matrices and its scale.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// [rank, in].
    pub a: Param,
    /// [out, rank].
    pub b: Param,
    /// Factor on B A x.
    pub scale: f32,
}

/// The pairs of one adapter.
#[derive(Clone, Debug, Default)]
pub struct AdapterSet {
    pairs: BTreeMap<LinearId, Pair>,
    dropout: Option<(f32, View)>,
}

impl AdapterSet {
    /// A trainable adapter: A uniform in +-1/sqrt(in) as PEFT initialises it, B zero.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn init(
        backend: &mut dyn Backend,
        spec: &Spec,
        adapter: &AdapterSpec,
        seed: u64,
    ) -> Result<AdapterSet> {
        let mut set = AdapterSet::default();
        for (i, id) in spec.linears(&adapter.targets).into_iter().enumerate() {
            let (out, input) = spec.linear_shape(id);
            let stream = Stream::new(seed, Purpose::Init, i as u32);
            let bound = 1.0 / (input as f64).sqrt();
            let n = adapter.rank * input;
            let a: Vec<f32> =
                (0..n as u64).map(|j| ((2.0 * stream.uniform(j) - 1.0) * bound) as f32).collect();
            set.insert(backend, id, &a, &vec![0.0; out * adapter.rank], adapter.rank, adapter.scale(), true)?;
        }
        if adapter.dropout > 0.0 {
            let key = View::new(backend.alloc(16)?, 0, 1, 4, TypeId::I32);
            set.dropout = Some((adapter.dropout, key));
        }
        Ok(set)
    }

    /// Adds a pair: `a` [rank, in] and `b` [out, rank], row-major.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    #[allow(clippy::too_many_arguments)]
    pub fn insert(
        &mut self,
        backend: &mut dyn Backend,
        id: LinearId,
        a: &[f32],
        b: &[f32],
        rank: usize,
        scale: f32,
        trainable: bool,
    ) -> Result<()> {
        let mut place = |rows: usize, values: &[f32]| -> Result<Param> {
            let cols = values.len() / rows;
            let bytes = (values.len() * 4) as u64;
            let view = View::new(backend.alloc(bytes)?, 0, rows, cols, TypeId::F32);
            backend.upload_f32(&view, values);
            let grad = match trainable {
                true => Some(View { home: backend.alloc(bytes)?, ..view }),
                false => None,
            };
            Ok(Param { view, grad })
        };
        let pair = Pair { a: place(rank, a)?, b: place(b.len() / rank, b)?, scale };
        self.pairs.insert(id, pair);
        Ok(())
    }

    /// The adapter of a linear map, as the tape takes it.
    pub fn of(&self, id: LinearId) -> Option<Adapter> {
        let pair = self.pairs.get(&id)?;
        // Two maps never share a dropout mask.
        let stream = (id.layer * 16 + id.role as usize) as u32;
        let dropout = self.dropout.map(|(p, key)| Dropout { p, key, stream });
        Some(Adapter { a: pair.a, b: pair.b, scale: pair.scale, dropout })
    }

    /// All pairs, block by block.
    pub fn pairs(&self) -> impl Iterator<Item = (LinearId, &Pair)> {
        self.pairs.iter().map(|(id, p)| (*id, p))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Where a training loop puts the dropout key of a micro-batch: seed low, seed high, step, micro-batch.
    pub fn dropout_key(&self) -> Option<View> {
        self.dropout.map(|(_, key)| key)
    }
}
