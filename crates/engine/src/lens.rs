//! A projection lens as it leaves training: folded into an ordinary embedding, so that any program can load the model.

use std::io::Write;

use planish_base::Result;
use planish_compute::Backend;
use planish_compute::quant::Quant;
use planish_model::WeightEntry;
use planish_store::fs;

use crate::engine::Engine;
use crate::export::check_finite;

/// The table that a lens looks at; in written files what it shows.
const TABLE: &str = "token_embd.weight";

/// Whether a tensor is only there for the lens.
pub fn is_part(name: &str) -> bool {
    name.starts_with("lens.")
}

/// The lens of an engine, and the table that it looks at.
pub struct Lens<'a> {
    engine: &'a Engine,
    table: &'a WeightEntry,
    /// The map, transposed: [donor width, width].
    columns: Vec<f64>,
    bias: Vec<f64>,
}

impl<'a> Lens<'a> {
    /// None for a model without.
    pub fn of(engine: &'a Engine) -> Option<Lens<'a>> {
        let (weight, bias) = engine.params.lens?;
        let values = |view| engine.backend.download_f32(view).into_iter().map(f64::from).collect::<Vec<_>>();
        let rows = values(&weight.view);
        let (out, donor) = (weight.view.rows, weight.view.cols);
        let columns =
            (0..donor).flat_map(|c| (0..out).map(move |r| (r, c))).map(|(r, c)| rows[r * donor + c]);
        let table = engine.model.weights.require(TABLE).ok()?;
        Some(Lens { engine, table, columns: columns.collect(), bias: values(&bias.view) })
    }

    /// Writes the embedding [vocab, width], f32: row v is W e_v + b for the table's row e_v, added up in f64.
    ///
    /// # Errors
    /// `not finite`; those of writing.
    pub fn write(&self, sink: &mut dyn Write) -> Result<()> {
        let weights = &self.engine.model.weights;
        let (codec, bytes) = (Quant::of(self.table.dtype)?, weights.bytes(self.table));
        let width = self.bias.len();
        let mut donor = vec![0f32; self.table.cols];
        for v in 0..self.table.rows {
            codec.decode_range(self.engine.backend.isa(), bytes, v * donor.len(), &mut donor);
            let mut sums = self.bias.clone();
            for (x, column) in donor.iter().zip(self.columns.chunks_exact(width)) {
                sums.iter_mut().zip(column).for_each(|(sum, w)| *sum += f64::from(*x) * w);
            }
            let row: Vec<u8> = sums.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            check_finite(TABLE, &row)?;
            sink.write_all(&row).map_err(fs::write_failed)?;
        }
        Ok(())
    }
}
