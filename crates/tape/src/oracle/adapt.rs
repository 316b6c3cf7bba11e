//! The calls of recipes: noise on embeddings, magnitudes of rows.

use planish_base::rng::{Purpose, philox4x32_10};
use planish_compute::Call;
use planish_compute::call::{self, Store};

use super::Oracle;

impl Oracle {
    /// Executes one of these.
    pub(super) fn adapt(&mut self, call: &Call) {
        match call {
            Call::Noise(c) => self.noise(c),
            Call::RowNorms(c) => self.row_norms(c),
            Call::Rescale(c) => self.rescale(c),
            Call::MagnitudeBack(c) => self.magnitude_back(c),
            _ => unreachable!("{} is no call of a recipe", call.name()),
        }
    }

    fn noise(&mut self, c: &call::Noise) {
        let key = [0, 1, 2, 3].map(|i| self.get(&c.key, 0, i) as u32);
        let (width, words) = (c.x.cols, c.x.cols.div_ceil(4) as u64);
        for s in 0..c.segments.rows {
            let [first, rows] = [0, 1].map(|i| self.get(&c.segments, s, i) as usize);
            let size = f64::from(c.alpha) / ((rows * width) as f64).sqrt();
            for (r, j) in (first..first + rows).flat_map(|r| (0..width).map(move |j| (r, j))) {
                let index = r as u64 * words + (j / 4) as u64;
                let stream = u32::MAX - Purpose::Noise as u32;
                let counter = [index as u32, key[3] << 16 ^ (index >> 32) as u32, key[2], stream];
                let word = philox4x32_10(counter, [key[0], key[1]])[j % 4] as i32;
                self.add_to(&c.x, r, j, Store::Accumulate, size * f64::from(word) / 2f64.powi(31));
            }
        }
    }

    fn row_norms(&mut self, c: &call::RowNorms) {
        self.each(&c.norms, |o, _, i| {
            let low = |j| (0..c.a.rows).map(|k| o.get(&c.b, i, k) * o.get(&c.a, k, j)).sum::<f64>();
            let element = |j| o.get(&c.w, i, j) + f64::from(c.scale) * low(j);
            (0..c.w.cols).map(|j| element(j).powi(2)).sum::<f64>().sqrt()
        });
    }

    fn rescale(&mut self, c: &call::Rescale) {
        self.each(&c.y, |o, r, j| {
            let factor = quotient(o.get(&c.magnitude, 0, j), o.get(&c.norms, 0, j));
            o.get(&c.x, r, j) * factor + c.bias.map_or(0.0, |bias| o.get(&bias, 0, j))
        });
    }

    fn magnitude_back(&mut self, c: &call::MagnitudeBack) {
        for j in 0..c.x.cols {
            let sum: f64 = (0..c.x.rows).map(|r| self.get(&c.dy, r, j) * self.get(&c.x, r, j)).sum();
            self.add_to(&c.dmagnitude, 0, j, Store::Accumulate, quotient(sum, self.get(&c.norms, 0, j)));
        }
    }
}

fn quotient(x: f64, norm: f64) -> f64 {
    if norm == 0.0 { 0.0 } else { x / norm }
}
