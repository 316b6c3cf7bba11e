//! Half a cosine from the highest to the lowest rate (Loshchilov and Hutter, 2017, without restarts).

use planish_base::math::cos_pi;

use super::{Schedule, Shape};

pub const SCHEDULE: Schedule = Schedule { name: "cosine", uses: &[], decay: |s, at| rate(s, at.progress()) };

/// The rate at p of the way from 0 to 1.
pub fn rate(s: &Shape, p: f64) -> f64 {
    s.min + 0.5 * (s.max - s.min) * (1.0 + cos_pi(p))
}
