//! The embedding of a new model: random, or rows of a donor's by the text of their tokens, copied where both are as
//! wide, else looked at through a projection lens (a frozen table and a trained map from its width).

use std::collections::BTreeMap;

use nalgebra::{DMatrix, DVector, SymmetricEigen};
use planish_base::rng::{Purpose, Stream};
use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use planish_engine::Model;
use planish_model::{Spec, WeightEntry};
use planish_text::Tokenizer;

use super::init::{Fill, First};
use super::shape::Lens;

/// Random numbers of rows that the donor does not have; no tensor of a model has this number.
const UNMATCHED: u32 = u32::MAX;
/// Rows whose products are added to the covariance at a time.
const ROWS: usize = 1024;

/// Where a new model's embedding comes from.
#[derive(Clone, Debug)]
pub enum Embedding {
    /// Random numbers.
    Random,
    /// Rows as wide as the model, [vocab, width].
    Rows(Fill),
    /// A table of another width that stays as it is, and the lens.
    Lens {
        /// [vocab, donor width].
        table: Fill,
        /// Width of its rows.
        donor_width: usize,
        /// [width, donor width].
        weight: Fill,
        /// [1, width].
        bias: Fill,
    },
}

impl Embedding {
    /// The width of the table where it is not the model's.
    pub fn lens(&self) -> Option<usize> {
        match self {
            Embedding::Lens { donor_width, .. } => Some(*donor_width),
            _ => None,
        }
    }

    /// Its tensors in a model of this shape; random ones have the given deviation.
    pub fn tensors(self, spec: &Spec, deviation: f64) -> Vec<First> {
        let (vocab, width) = (spec.vocab, spec.width);
        let tensor = |name: &str, rows, cols, fill| First { name: name.into(), rows, cols, fill };
        let table = |cols, fill| tensor("token_embd.weight", vocab, cols, fill);
        match self {
            Embedding::Random => vec![table(width, Fill::Normal(deviation))],
            Embedding::Rows(rows) => vec![table(width, rows)],
            Embedding::Lens { table: rows, donor_width, weight, bias } => vec![
                table(donor_width, rows),
                tensor("lens.proj.weight", width, donor_width, weight),
                tensor("lens.proj.bias", 1, width, bias),
            ],
        }
    }
}

/// A model whose embedding is given to another.
pub struct Donor<'a> {
    model: &'a Model,
    table: &'a WeightEntry,
    /// For each token of the new vocabulary, the donor's row of the same text.
    rows: Vec<Option<usize>>,
}

impl<'a> Donor<'a> {
    /// Finds the tokens of `vocabulary` in the donor's.
    ///
    /// # Errors
    /// `no tokenizer` for a donor without one; `donor` when not one token is the same.
    pub fn new(model: &'a Model, vocabulary: &Tokenizer) -> Result<Donor<'a>> {
        let own = model.tokenizer()?;
        let ids = |t: &Tokenizer| 0..t.vocab_size() as u32;
        // A control token is not the text that it looks like.
        let mut by_text = BTreeMap::new();
        for id in ids(own) {
            by_text.entry((own.is_special(id), own.piece(id).unwrap_or_default())).or_insert(id as usize);
        }
        let text = |id| (vocabulary.is_special(id), vocabulary.piece(id).unwrap_or_default());
        let rows: Vec<Option<usize>> = ids(vocabulary).map(|id| by_text.get(&text(id)).copied()).collect();
        if rows.iter().all(Option::is_none) {
            return Err(Error::input("donor", "no token of the vocabulary is one of the donor's")
                .with_hint("take the donor's tokenizer: leave --tokenizer and --vocab-size out"));
        }
        Ok(Donor { model, table: model.weights.require("token_embd.weight")?, rows })
    }

    /// Tokens of the vocabulary that the donor has.
    pub fn matched(&self) -> usize {
        self.rows.iter().flatten().count()
    }

    /// Width of the donor's embedding.
    pub fn width(&self) -> usize {
        self.table.cols
    }

    /// The embedding of a model of this width: rows copied, or seen through a lens.
    ///
    /// # Errors
    /// `donor` for another width without a lens, for a lens on the same width, and for principal components of fewer
    /// dimensions than asked for.
    pub fn embedding(&self, width: usize, lens: Option<Lens>, seed: u64) -> Result<Embedding> {
        let donor_width = self.width();
        let Some(lens) = lens else {
            if donor_width == width {
                return Ok(Embedding::Rows(Fill::Values(self.values(seed)?)));
            }
            let message = format!("the donor's embedding is {donor_width} wide, the model {width}");
            return Err(Error::usage("donor", message)
                .with_hint(format!("look at it through a lens with --lens, or give width = {donor_width}")));
        };
        let (weight, bias) = match lens {
            Lens::Random => (Fill::Normal(1.0 / (donor_width as f64).sqrt()), Fill::Constant(0.0)),
            Lens::Pca if width > donor_width => {
                let message = format!("a donor of width {donor_width} has no {width} principal components");
                return Err(Error::usage("donor", message).with_hint("use --lens random"));
            }
            Lens::Pca => {
                let (weight, bias) = principal(&self.values(seed)?, donor_width, width);
                (Fill::Values(weight), Fill::Values(bias))
            }
        };
        Ok(Embedding::Lens { table: self.table(seed)?, donor_width, weight, bias })
    }

    /// The table as it lies in the donor's file where the vocabulary is the donor's own, else as f32.
    fn table(&self, seed: u64) -> Result<Fill> {
        let own =
            self.rows.len() == self.table.rows && self.rows.iter().enumerate().all(|(i, r)| *r == Some(i));
        match own {
            true => Ok(Fill::Bytes(self.table.dtype, self.model.weights.bytes(self.table).to_vec())),
            false => Ok(Fill::Values(self.values(seed)?)),
        }
    }

    /// [vocab, donor width]: the donor's rows; those it does not have are random, with the deviation of the others.
    fn values(&self, seed: u64) -> Result<Vec<f32>> {
        let cols = self.width();
        let codec = Quant::of(self.table.dtype).map_err(|e| e.in_file(&self.model.path))?;
        let bytes = self.model.weights.bytes(self.table);
        let mut out = vec![0f32; self.rows.len() * cols];
        for (row, from) in out.chunks_exact_mut(cols).zip(&self.rows) {
            if let Some(r) = from {
                codec.decode_range(Isa::detect(), bytes, r * cols, row);
            }
        }
        let squares: f64 = out.iter().map(|x| f64::from(*x).powi(2)).sum();
        let deviation = (squares / (self.matched() * cols) as f64).sqrt();
        for (i, row) in out.chunks_exact_mut(cols).enumerate().filter(|(i, _)| self.rows[*i].is_none()) {
            let stream = Stream::new(seed, Purpose::Init, UNMATCHED);
            for (j, x) in row.iter_mut().enumerate() {
                *x = (stream.normal((i * cols + j) as u64) * deviation) as f32;
            }
        }
        Ok(out)
    }
}

/// The first `count` principal components of rows `cols` wide as the rows of a matrix W, and -W mean, so that
/// W x + bias are the coordinates of x around the rows' mean.
fn principal(rows: &[f32], cols: usize, count: usize) -> (Vec<f32>, Vec<f32>) {
    let n = (rows.len() / cols) as f64;
    let mut mean = DVector::<f64>::zeros(cols);
    let mut products = DMatrix::<f64>::zeros(cols, cols);
    for block in rows.chunks(ROWS * cols) {
        // Column-major: each column is a row of the table.
        let x = DMatrix::from_iterator(cols, block.len() / cols, block.iter().map(|v| f64::from(*v)));
        mean += x.column_sum();
        products += &x * x.transpose();
    }
    mean /= n;
    let covariance = products / n - &mean * mean.transpose();
    let eigen = SymmetricEigen::new(covariance);
    let mut order: Vec<usize> = (0..cols).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let (mut weight, mut bias) = (Vec::with_capacity(count * cols), Vec::with_capacity(count));
    for i in order.into_iter().take(count) {
        let v = eigen.eigenvectors.column(i);
        // Either sign is a component: the one whose largest element is positive.
        let sign = if v[v.iamax()] < 0.0 { -1.0 } else { 1.0 };
        weight.extend(v.iter().map(|x| (sign * x) as f32));
        bias.push((-sign * v.dot(&mean)) as f32);
    }
    (weight, bias)
}
