//! The highest rate all the way.

use super::Schedule;

pub const SCHEDULE: Schedule = Schedule { name: "constant", uses: &[], decay: |s, _| s.max };
