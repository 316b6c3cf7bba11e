//! Which examples a step trains on: a pure function of (seed, step).

use planish_text::order;

/// The order of a run's examples: each epoch is a permutation of its own, and a batch may reach over its end.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Of the permutations.
    pub seed: u64,
    /// Training examples.
    pub examples: usize,
    /// Sequences of a step.
    pub batch_size: usize,
}

impl Order {
    /// Indices of step `s`, counted from 0.
    pub fn step(&self, s: usize) -> Vec<usize> {
        let (mut out, mut epoch) = (Vec::with_capacity(self.batch_size), None);
        for k in s * self.batch_size..(s + 1) * self.batch_size {
            let (e, i) = (k / self.examples, k % self.examples);
            let (_, permutation) = match epoch.take() {
                Some((known, p)) if known == e => epoch.insert((known, p)),
                _ => epoch.insert((e, order(self.seed, e as u32, self.examples))),
            };
            out.push(permutation[i]);
        }
        out
    }

    /// Steps of this many passes over the data, at least one.
    pub fn steps(&self, epochs: f64) -> usize {
        ((self.examples as f64 * epochs / self.batch_size as f64).ceil() as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_sees_each_example_once() {
        let order = Order { seed: 5, examples: 10, batch_size: 4 };
        let seen: Vec<usize> = (0..5).flat_map(|s| order.step(s)).collect();
        for epoch in seen.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(seen[..10], seen[10..]);
        assert_eq!(order.steps(1.0), 3);
        assert_eq!(order.steps(2.0), 5);
    }
}
