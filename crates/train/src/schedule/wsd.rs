//! Warm-up, stable, decay: the highest rate up to the last share of the steps, which fall to the lowest rate as
//! 1 - sqrt (Hägele et al., 2024).

use super::Schedule;

pub const SCHEDULE: Schedule = Schedule {
    name: "wsd",
    uses: &["decay-share"],
    decay: |s, at| {
        let fall = ((s.decay_share * s.steps as f64).round() as usize).clamp(1, at.last);
        let into = at.done.saturating_sub(at.last - fall);
        s.fallen((into as f64 / fall as f64).sqrt())
    },
};
