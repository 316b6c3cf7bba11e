//! Choosing the next token from its logits.

use planish_base::math::exp_f64;
use planish_base::rng::{Purpose, Stream};
use planish_base::{Error, Result};

/// How to choose. Temperature 0 takes the most probable token, ties to the lower id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most probable tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this probable against the best; 0 keeps all.
    pub min_p: f32,
    /// Divide positive and multiply negative logits of tokens already seen; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Of the random numbers.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: 0 }
    }
}

impl SamplerOptions {
    /// # Errors
    /// Kind `Usage` for a number out of range.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str, value: f32, allowed: &str| {
            Err(Error::usage("sampling", format!("{what} {value} is not {allowed}")))
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return bad("temperature", self.temperature, "0 or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top-p", self.top_p, "in (0, 1]");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("min-p", self.min_p, "in [0, 1]");
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite()) {
            return bad("repeat penalty", self.repeat_penalty, "positive");
        }
        Ok(())
    }
}

/// Chooses tokens; the choice at step i is a function of the logits, the options and i.
pub struct Sampler {
    options: SamplerOptions,
    stream: Stream,
    step: u64,
    seen: Vec<u32>,
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// # Errors
    /// As [`SamplerOptions::check`].
    pub fn new(options: SamplerOptions) -> Result<Sampler> {
        options.check()?;
        let stream = Stream::new(options.seed, Purpose::Sample, 0);
        Ok(Sampler { options, stream, step: 0, seen: Vec::new(), candidates: Vec::new() })
    }

    /// The next token. A logit that is not a number is never chosen.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        let id = if self.options.temperature == 0.0 { self.greedy(logits) } else { self.sample(logits) };
        self.step += 1;
        if !self.seen.contains(&id) {
            self.seen.push(id);
        }
        id
    }

    fn penalised(&self, id: usize, logit: f32) -> f32 {
        let p = self.options.repeat_penalty;
        // Once for each distinct token, however often it occurred.
        if p == 1.0 || !self.seen.contains(&(id as u32)) {
            return logit;
        }
        if logit > 0.0 { logit / p } else { logit * p }
    }

    fn greedy(&self, logits: &[f32]) -> u32 {
        let mut best = (0, f32::NEG_INFINITY);
        for (id, &logit) in logits.iter().enumerate() {
            let logit = self.penalised(id, logit);
            if logit > best.1 {
                best = (id as u32, logit);
            }
        }
        best.0
    }

    fn sample(&mut self, logits: &[f32]) -> u32 {
        let temperature = f64::from(self.options.temperature);
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend(
            logits
                .iter()
                .enumerate()
                .filter(|(_, l)| !l.is_nan())
                .map(|(id, &l)| (id as u32, f64::from(self.penalised(id, l)) / temperature)),
        );
        // Best first, ties to the lower id, so that every cut is well defined.
        candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.options.top_k > 0 {
            candidates.truncate(self.options.top_k);
        }
        let Some(best) = candidates.first().map(|c| c.1) else { return 0 };
        candidates.iter_mut().for_each(|c| c.1 = exp_f64(c.1 - best));
        let min_p = f64::from(self.options.min_p);
        candidates.retain(|c| c.1 >= min_p);
        let total: f64 = candidates.iter().map(|c| c.1).sum();
        let (mut mass, mut kept) = (0.0, 0);
        for c in &candidates {
            mass += c.1;
            kept += 1;
            if mass >= f64::from(self.options.top_p) * total {
                break;
            }
        }
        let mut left = self.stream.uniform(self.step) * mass;
        let chosen = candidates[..kept].iter().find(|c| {
            left -= c.1;
            left < 0.0
        });
        let id = chosen.unwrap_or(&candidates[kept - 1]).0;
        self.candidates = candidates;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(options: SamplerOptions, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(options).unwrap();
        let n = 20_000;
        let mut counts = vec![0.0; logits.len()];
        (0..n).for_each(|_| counts[sampler.next(logits) as usize] += 1.0 / f64::from(n));
        counts
    }

    /// Against the closed form of each cut.
    #[test]
    fn frequencies_follow_the_distribution() {
        let p = [0.5, 0.3, 0.15, 0.05];
        let logits: Vec<f32> = p.iter().map(|p: &f64| p.ln() as f32).collect();
        let base = SamplerOptions { temperature: 1.0, ..SamplerOptions::default() };
        let cases = [
            (base, vec![0.5, 0.3, 0.15, 0.05]),
            (SamplerOptions { top_k: 2, ..base }, vec![0.625, 0.375, 0.0, 0.0]),
            (SamplerOptions { top_p: 0.79, ..base }, vec![0.625, 0.375, 0.0, 0.0]),
            (SamplerOptions { min_p: 0.2, ..base }, vec![0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]),
            (SamplerOptions { temperature: 0.0, ..base }, vec![1.0, 0.0, 0.0, 0.0]),
        ];
        for (options, want) in cases {
            for (got, want) in frequencies(options, &logits).iter().zip(want) {
                assert!((got - want).abs() < 0.012, "{options:?}: {got} against {want}");
            }
        }
    }

    #[test]
    fn nan_is_never_chosen() {
        for temperature in [0.0, 1.0] {
            let mut s = Sampler::new(SamplerOptions { temperature, ..Default::default() }).unwrap();
            assert_eq!(s.next(&[f32::NAN, 1.0, f32::NAN]), 1);
        }
    }
}
