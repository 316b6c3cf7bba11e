//! A straight line from the highest to the lowest rate.

use super::Schedule;

pub const SCHEDULE: Schedule = Schedule { name: "linear", uses: &[], decay: |s, at| s.fallen(at.progress()) };
