//! Activations of gated MLPs by their definitions.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use planish_base::math::exp_f64;
use planish_compute::call::Activation;

/// The activation of `x`, and its derivative.
pub fn activation(act: Activation, x: f64) -> (f64, f64) {
    match act {
        Activation::Silu => {
            let s = 1.0 / (1.0 + exp_f64(-x));
            (x * s, s + x * s * (1.0 - s))
        }
        Activation::Gelu => {
            let root = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            let e = exp_f64(-2.0 * root * (x + 0.044715 * x * x * x));
            let tanh = (1.0 - e) / (1.0 + e);
            let slope = root * (1.0 + 3.0 * 0.044715 * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        }
    }
}
