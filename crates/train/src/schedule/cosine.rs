//! Half a cosine from the highest to the lowest rate (Loshchilov and Hutter, 2017, without restarts).

use planish_base::math::cos_pi;

use super::Schedule;

pub const SCHEDULE: Schedule =
    Schedule { name: "cosine", decay: |s, p| s.min + 0.5 * (s.max - s.min) * (1.0 + cos_pi(p)) };
