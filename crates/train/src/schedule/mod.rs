//! Learning-rate schedules. A schedule is one file here and one line in [`SCHEDULES`].

mod constant;
mod cosine;

use planish_base::{Error, Result};

/// The numbers a schedule depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// All steps.
    pub steps: usize,
    /// Steps of linear warm-up.
    pub warmup: usize,
    /// Highest rate.
    pub max: f64,
    /// Lowest rate after warm-up.
    pub min: f64,
}

/// A schedule: warm-up is common, the decay after it is its own.
pub struct Schedule {
    /// The name on the command line.
    pub name: &'static str,
    /// The rate at progress p in [0, 1] after warm-up; p is 1 at the last step.
    pub decay: fn(&Shape, f64) -> f64,
}

/// Every schedule.
pub static SCHEDULES: &[Schedule] = &[constant::SCHEDULE, cosine::SCHEDULE];

/// The schedule of this name.
///
/// # Errors
/// Kind `Usage`, with the known names.
pub fn of(name: &str) -> Result<&'static Schedule> {
    SCHEDULES.iter().find(|s| s.name == name).ok_or_else(|| {
        let known: Vec<&str> = SCHEDULES.iter().map(|s| s.name).collect();
        Error::usage("schedule", format!("unknown schedule `{name}`"))
            .with_hint(format!("one of {}", known.join(", ")))
    })
}

impl Schedule {
    /// The rate of step `s`, counted from 0. Warm-up reaches the highest rate at its last step.
    pub fn rate(&self, shape: &Shape, s: usize) -> f64 {
        if s < shape.warmup {
            return shape.max * (s + 1) as f64 / shape.warmup as f64;
        }
        let rest = shape.steps.saturating_sub(1 + shape.warmup).max(1) as f64;
        (self.decay)(shape, (((s - shape.warmup) as f64) / rest).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closed forms: (s + 1) / w up to w, then the half cosine from the highest to the lowest rate.
    #[test]
    fn cosine_with_warm_up_ends_at_the_lowest_rate() {
        let shape = Shape { steps: 21, warmup: 4, max: 1.0, min: 0.1 };
        let cosine = of("cosine").unwrap();
        let rates: Vec<f64> = (0..21).map(|s| cosine.rate(&shape, s)).collect();
        assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0]);
        assert!((rates[4] - 1.0).abs() < 1e-15 && (rates[12] - 0.55).abs() < 1e-15);
        assert!((rates[20] - 0.1).abs() < 1e-15);
        assert!(rates[4..].windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn short_runs_are_defined() {
        for s in SCHEDULES {
            for (steps, warmup) in [(1, 0), (1, 1), (1, 5), (2, 1), (2, 2)] {
                let shape = Shape { steps, warmup, max: 2.0, min: 0.5 };
                for step in 0..steps {
                    let rate = s.rate(&shape, step);
                    assert!(rate > 0.0 && rate <= 2.0, "{} {steps} {warmup} {step}: {rate}", s.name);
                }
            }
        }
        assert!(of("linear").is_err());
    }
}
