//! The inverse square root of the step (Vaswani et al., 2017), from the highest rate at the end of warm-up down to the
//! lowest rate.

use super::Schedule;

pub const SCHEDULE: Schedule = Schedule {
    name: "inverse-sqrt",
    uses: &[],
    decay: |s, at| {
        let step = s.warmup + at.done + 1;
        (s.max * (s.warmup.max(1) as f64 / step as f64).sqrt()).max(s.min)
    },
};
