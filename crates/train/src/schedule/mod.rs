//! Learning-rate schedules. A schedule is one file here and one line in [`SCHEDULES`].

mod constant;
mod cosine;
mod cosine_restarts;
mod inverse_sqrt;
mod linear;
mod wsd;

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
    /// How often a schedule with restarts falls.
    pub cycles: usize,
    /// The share of all steps in which a schedule that is stable before falls.
    pub decay_share: f64,
}

impl Shape {
    /// Cycles where none are given.
    pub const CYCLES: usize = 4;
    /// The share where none is given (Hägele et al., 2024).
    pub const DECAY_SHARE: f64 = 0.2;

    /// The rate at p of a fall from the highest rate (0) to the lowest (1).
    fn fallen(&self, p: f64) -> f64 {
        self.max + (self.min - self.max) * p
    }
}

/// Where a step lies after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Steps after warm-up that are done.
    pub done: usize,
    /// How many will be when the last step begins; at least 1.
    pub last: usize,
}

impl At {
    /// 0 at the end of warm-up, 1 at the last step.
    fn progress(self) -> f64 {
        self.done as f64 / self.last as f64
    }
}

/// A schedule: warm-up is common, the decay after it is its own.
pub struct Schedule {
    /// The name on the command line.
    pub name: &'static str,
    /// The settings that it has, of `cycles` and `decay-share`.
    pub uses: &'static [&'static str],
    /// The rate after warm-up.
    pub decay: fn(&Shape, At) -> f64,
}

/// Every schedule.
pub static SCHEDULES: &[Schedule] = &[
    constant::SCHEDULE,
    linear::SCHEDULE,
    cosine::SCHEDULE,
    cosine_restarts::SCHEDULE,
    inverse_sqrt::SCHEDULE,
    wsd::SCHEDULE,
];

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
        let last = shape.steps.saturating_sub(1 + shape.warmup).max(1);
        (self.decay)(shape, At { done: (s - shape.warmup).min(last), last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { steps: 21, warmup: 4, max: 1.0, min: 0.1, cycles: 4, decay_share: 0.2 };

    fn rates(name: &str, shape: Shape) -> Vec<f64> {
        (0..shape.steps).map(|s| of(name).unwrap().rate(&shape, s)).collect()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-14
    }

    /// Closed form: (s + 1) / w of the highest rate up to w.
    #[test]
    fn warm_up_is_linear() {
        for s in SCHEDULES {
            assert_eq!(rates(s.name, SHAPE)[..4], [0.25, 0.5, 0.75, 1.0], "{}", s.name);
        }
    }

    /// Half the cosine from the highest to the lowest rate.
    #[test]
    fn cosine_ends_at_the_lowest_rate() {
        let rates = rates("cosine", SHAPE);
        assert!(close(rates[4], 1.0) && close(rates[12], 0.55) && close(rates[20], 0.1));
        assert!(rates[4..].windows(2).all(|w| w[0] > w[1]));
    }

    /// max - (max - min) i / 16.
    #[test]
    fn linear_falls_by_the_same_every_step() {
        let rates = rates("linear", SHAPE);
        assert!((0..=16).all(|i| close(rates[4 + i], 1.0 - 0.9 * i as f64 / 16.0)), "{rates:?}");
    }

    /// Four cycles of four steps: min + (max - min) (1 + cos(pi i / 4)) / 2 for i = 0 .. 3, and the lowest rate at the
    /// end. One cycle is the cosine.
    #[test]
    fn cosine_restarts_at_the_highest_rate() {
        let got = rates("cosine-restarts", SHAPE);
        let half = std::f64::consts::FRAC_1_SQRT_2;
        for (i, rate) in got[4..20].iter().enumerate() {
            let cos = [1.0, half, 0.0, -half][i % 4];
            assert!(close(*rate, 0.1 + 0.45 * (1.0 + cos)), "{i}: {rate}");
        }
        assert!(close(got[20], 0.1));
        let one = Shape { cycles: 1, ..SHAPE };
        assert!(rates("cosine-restarts", one).iter().zip(rates("cosine", one)).all(|(a, b)| close(*a, b)));
        // 3 does not divide 16: cycles begin at the first step after 16/3 and 32/3.
        let got = rates("cosine-restarts", Shape { cycles: 3, ..SHAPE });
        let rises: Vec<usize> = (5..21).filter(|&s| got[s] > got[s - 1]).collect();
        assert_eq!(rises, [4 + 6, 4 + 11]);
    }

    /// 21 steps, of which 0.2 * 21 = 4 (rounded) lead from the highest to the lowest rate: at i of 4 the rate has fallen
    /// by sqrt(i / 4).
    #[test]
    fn wsd_is_stable_and_then_falls_by_the_root() {
        let rates = rates("wsd", SHAPE);
        assert!(rates[4..=16].iter().all(|r| *r == 1.0), "{rates:?}");
        let root = |i: f64| 1.0 - 0.9 * (i / 4.0).sqrt();
        assert!((0..=4).all(|i| close(rates[16 + i], root(i as f64))), "{rates:?}");
    }

    /// max sqrt(w / n) at step n, counted from 1, down to the lowest rate.
    #[test]
    fn inverse_root_halves_in_four_times_the_steps() {
        let shape = Shape { steps: 500, ..SHAPE };
        let rates = rates("inverse-sqrt", shape);
        assert!(close(rates[15], 0.5) && close(rates[63], 0.25) && close(rates[99], 0.2));
        assert!(rates[400..].iter().all(|r| *r == 0.1));
    }

    #[test]
    fn short_runs_are_defined() {
        for s in SCHEDULES {
            for (steps, warmup) in [(1, 0), (1, 1), (1, 5), (2, 1), (2, 2), (3, 0)] {
                for (cycles, decay_share) in [(1, 0.01), (7, 1.0)] {
                    let shape = Shape { steps, warmup, max: 2.0, min: 0.5, cycles, decay_share };
                    for step in 0..steps {
                        let rate = s.rate(&shape, step);
                        assert!(rate > 0.0 && rate <= 2.0, "{} {steps} {warmup} {step}: {rate}", s.name);
                    }
                }
            }
        }
        assert!(of("quadratic").is_err());
    }
}
