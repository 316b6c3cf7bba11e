//! The table of rotary angles.

use planish_base::math::{powf, sin_cos};

use crate::spec::Rope;

/// cos and sin of position * frequency of each pair, interleaved: [positions, width], angles in double precision.
pub fn table(rope: &Rope, width: usize, positions: usize) -> Vec<f32> {
    let frequencies: Vec<f64> =
        (0..width / 2).map(|i| powf(rope.base, -(2.0 * i as f64) / width as f64) / rope.factors[i]).collect();
    let mut out = Vec::with_capacity(positions * width);
    for position in 0..positions {
        for f in &frequencies {
            let (sin, cos) = sin_cos(position as f64 * f);
            out.extend([cos as f32, sin as f32]);
        }
    }
    out
}

/// The divisors of Llama 3's scaling: frequencies whose wavelength is long against the original context are divided
/// by `factor`, short ones kept, and those between blended (Hugging Face `_compute_llama3_parameters`).
pub fn llama3_factors(base: f64, width: usize, factor: f64, low: f64, high: f64, original: f64) -> Vec<f64> {
    (0..width / 2)
        .map(|i| {
            let frequency = powf(base, -(2.0 * i as f64) / width as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect()
}
