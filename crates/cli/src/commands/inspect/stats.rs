//! Statistics of a tensor's values.

use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_compute::quant::Quant;
use serde_json::{Value, json};

use super::listing::{Listing, Tensor};
use crate::interrupt::Interrupt;
use crate::output::{Out, printable};

/// Values that are decoded at a time; whole blocks of every type.
const CHUNK: usize = 1 << 16;

/// Moments are of the finite values, and kept in f64.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    min: f32,
    max: f32,
    finite: u64,
    mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
    zeros: u64,
    not_finite: u64,
}

/// Decodes a tensor piece by piece.
///
/// # Errors
/// `tensor type` for a type without a codec; kind `Interrupted`.
pub fn of(listing: &Listing, tensor: &Tensor, interrupt: &Interrupt) -> Result<Stats> {
    let id = tensor.id.ok_or_else(|| {
        Error::input("tensor type", format!("tensor type {} cannot be decoded", tensor.ty))
    })?;
    let quant = Quant::of(id)?;
    let isa = Isa::detect();
    let mut stats = Stats::new();
    let mut values = vec![0f32; CHUNK.min(tensor.elements() as usize)];
    for bytes in listing.data(tensor).chunks(CHUNK / quant.block() * quant.block_bytes()) {
        interrupt.check()?;
        let values = &mut values[..bytes.len() / quant.block_bytes() * quant.block()];
        (quant.decode)(isa, bytes, values);
        stats.add(values);
    }
    Ok(stats)
}

impl Stats {
    fn new() -> Stats {
        Stats {
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            finite: 0,
            mean: 0.0,
            squares: 0.0,
            zeros: 0,
            not_finite: 0,
        }
    }

    /// Joins the moments of a chunk to those so far (Chan, Golub and LeVeque, 1983).
    fn add(&mut self, values: &[f32]) {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let n = finite().count() as u64;
        self.not_finite += values.len() as u64 - n;
        self.zeros += values.iter().filter(|v| **v == 0.0).count() as u64;
        if n == 0 {
            return;
        }
        self.min = finite().fold(self.min, f32::min);
        self.max = finite().fold(self.max, f32::max);
        let mean = finite().map(f64::from).sum::<f64>() / n as f64;
        let squares = finite().map(|v| (f64::from(v) - mean).powi(2)).sum::<f64>();
        let total = self.finite + n;
        let difference = mean - self.mean;
        self.squares +=
            squares + difference * difference * self.finite as f64 * n as f64 / total as f64;
        self.mean += difference * n as f64 / total as f64;
        self.finite = total;
    }

    /// Of the population, as numpy's default.
    fn deviation(&self) -> f64 {
        (self.squares / self.finite.max(1) as f64).sqrt()
    }

    /// As one object; without a finite value there are no moments.
    pub fn json(&self, tensor: &Tensor) -> Value {
        let some = |v: f64| (self.finite > 0).then_some(v);
        json!({"tensor": {
            "name": tensor.name,
            "type": tensor.ty,
            "dims": tensor.dims,
            "elements": tensor.elements(),
            "min": some(f64::from(self.min)),
            "max": some(f64::from(self.max)),
            "mean": some(self.mean),
            "std": some(self.deviation()),
            "zeros": self.zeros,
            "non_finite": self.not_finite,
        }})
    }

    /// For people.
    ///
    /// # Errors
    /// When stdout fails.
    pub fn print(&self, tensor: &Tensor, out: &mut Out) -> Result<()> {
        let elements = tensor.elements();
        out.line(&format!("tensor      {}", printable(&tensor.name)))?;
        out.line(&format!("type        {}, {:?}, {elements} elements", tensor.ty, tensor.dims))?;
        if self.finite > 0 {
            out.line(&format!("min         {}", self.min))?;
            out.line(&format!("max         {}", self.max))?;
            out.line(&format!("mean        {:.9}", self.mean))?;
            out.line(&format!("std         {:.9}", self.deviation()))?;
        }
        out.line(&format!("zeros       {}", self.zeros))?;
        out.line(&format!("non-finite  {}", self.not_finite))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() + 100.0).collect();
        let (mut whole, mut parts) = (Stats::new(), Stats::new());
        whole.add(&values);
        values.chunks(7).for_each(|c| parts.add(c));
        parts.add(&[f32::NAN, f32::INFINITY]);
        assert!((whole.mean - parts.mean).abs() < 1e-12);
        assert!((whole.deviation() - parts.deviation()).abs() < 1e-12);
        assert_eq!((parts.min, parts.max, parts.not_finite), (whole.min, whole.max, 2));
    }
}
