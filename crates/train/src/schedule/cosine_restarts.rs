//! Half a cosine again and again (Loshchilov and Hutter, 2017: SGDR), with cycles of the same length.

use super::{Schedule, cosine};

pub const SCHEDULE: Schedule = Schedule {
    name: "cosine-restarts",
    uses: &["cycles"],
    decay: |s, at| {
        // In whole numbers, so that a cycle begins with the highest rate; the last one has an end as well.
        let within = at.done * s.cycles % at.last;
        let p = if at.done == at.last { 1.0 } else { within as f64 / at.last as f64 };
        cosine::rate(s, p)
    },
};
