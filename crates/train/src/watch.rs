//! What a run remembers of its losses: sudden jumps, and the best held-out loss.

use serde::{Deserialize, Serialize};

/// Share of a new loss in the running mean and variance.
const SHARE: f64 = 1.0 / 32.0;
/// Losses before anything is called a jump.
const WARM_UP: u64 = 32;
/// Standard deviations above the mean that are a jump.
const JUMP: f64 = 6.0;

/// Exponentially weighted mean and variance of the training loss (West, 1979).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossWatch {
    mean: f64,
    variance: f64,
    seen: u64,
}

impl LossWatch {
    /// Takes in the loss of a step; returns its z-score when it is far above those before.
    pub fn jump(&mut self, loss: f64) -> Option<f64> {
        let z = (loss - self.mean) / self.variance.sqrt().max(f64::MIN_POSITIVE);
        let jump = self.seen >= WARM_UP && z > JUMP;
        if self.seen == 0 {
            self.mean = loss;
        }
        let delta = loss - self.mean;
        self.mean += SHARE * delta;
        self.variance = (1.0 - SHARE) * (self.variance + SHARE * delta * delta);
        self.seen += 1;
        jump.then_some(z)
    }
}

/// The lowest held-out loss so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BestWatch {
    /// Its step and loss.
    pub best: Option<(usize, f64)>,
    /// Evaluations since.
    pub since: usize,
}

impl BestWatch {
    /// Takes in an evaluation; says whether it is the best.
    pub fn is_best(&mut self, step: usize, loss: f64) -> bool {
        let better = self.best.is_none_or(|(_, best)| loss < best);
        if better {
            *self = BestWatch { best: Some((step, loss)), since: 0 };
        } else {
            self.since += 1;
        }
        better
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_seen_and_a_slow_rise_is_not() {
        let mut watch = LossWatch::default();
        // Losses that alternate by 0.1 around 2: the standard deviation is 0.1.
        for i in 0..200 {
            assert_eq!(watch.jump(2.0 + if i % 2 == 0 { 0.1 } else { -0.1 }), None);
        }
        let mut rising = watch;
        assert!((0..50).all(|i| rising.jump(2.0 + 0.02 * f64::from(i)).is_none()));
        let z = watch.jump(3.0).unwrap();
        assert!((z - 10.0).abs() < 0.5, "{z}");
    }

    #[test]
    fn the_best_is_the_lowest_and_patience_counts_from_it() {
        let mut watch = BestWatch::default();
        let seen: Vec<bool> =
            [3.0, 2.0, 2.5, 2.0].iter().enumerate().map(|(i, l)| watch.is_best(i, *l)).collect();
        assert_eq!(seen, [true, true, false, false]);
        assert_eq!((watch.best, watch.since), (Some((1, 2.0)), 2));
    }
}
