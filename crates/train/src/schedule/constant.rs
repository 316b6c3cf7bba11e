//! The highest rate all the way.

use super::Schedule;

pub const SCHEDULE: Schedule = Schedule { name: "constant", decay: |s, _| s.max };
