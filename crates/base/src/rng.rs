//! Random numbers as a function of (seed, purpose, step, index): nothing to save, nothing to advance, any seed is
//! good. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

use crate::math;

/// What the numbers are for. Two purposes never share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights.
    Init = 1,
    /// The order of examples in an epoch.
    Shuffle = 2,
    /// Dropout masks.
    Dropout = 3,
    /// Sampling of the next token.
    Sample = 4,
    /// Which examples are held out.
    Split = 5,
    /// The choices of the built-in stories.
    Tales = 6,
    /// Noise on embeddings.
    Noise = 7,
    /// Directions that a search for singular vectors begins with.
    Sketch = 8,
}

/// One stream of numbers, addressed by index.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
    purpose: u32,
    step: u32,
}

impl Stream {
    /// The stream of `purpose` at `step` (a training step, an epoch, a tensor's number).
    pub fn new(seed: u64, purpose: Purpose, step: u32) -> Self {
        Stream { key: [seed as u32, (seed >> 32) as u32], purpose: purpose as u32, step }
    }

    /// Four independent 32-bit words at `index`.
    #[inline]
    pub fn words(&self, index: u64) -> [u32; 4] {
        philox4x32_10([index as u32, (index >> 32) as u32, self.step, self.purpose], self.key)
    }

    /// Uniform 64 bits at `index`.
    pub fn u64(&self, index: u64) -> u64 {
        let w = self.words(index);
        u64::from(w[0]) | u64::from(w[1]) << 32
    }

    /// Uniform in [0, 1) with 53 bits at `index`.
    pub fn uniform(&self, index: u64) -> f64 {
        (self.u64(index) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Standard normal at `index` (Box and Muller).
    pub fn normal(&self, index: u64) -> f64 {
        let w = self.words(index);
        let scale = 1.0 / 4_294_967_296.0;
        let u1 = (f64::from(w[0]) + 0.5) * scale;
        let u2 = (f64::from(w[1]) + f64::from(w[2]) * scale) * scale;
        (-2.0 * math::ln(u1)).sqrt() * math::cos_pi(2.0 * u2)
    }

    /// A permutation of 0..n (Fisher and Yates).
    pub fn permutation(&self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            // The bias of taking a remainder of 64 bits is below n / 2^64.
            let j = (self.u64(i as u64) % (i as u64 + 1)) as usize;
            order.swap(i, j);
        }
        order
    }
}

/// The Philox 4x32 block function with ten rounds.
#[inline]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normals_have_the_right_moments_for_any_seed() {
        for seed in [0, 1, u64::MAX] {
            let s = Stream::new(seed, Purpose::Init, 7);
            let n = 100_000;
            let (mut m1, mut m2, mut m4) = (0.0, 0.0, 0.0);
            for i in 0..n {
                let x = s.normal(i);
                m1 += x;
                m2 += x * x;
                m4 += x * x * x * x;
            }
            let n = n as f64;
            assert!((m1 / n).abs() < 0.015 && (m2 / n - 1.0).abs() < 0.02 && (m4 / n - 3.0).abs() < 0.15);
        }
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut p = Stream::new(3, Purpose::Shuffle, 0).permutation(100);
        assert_ne!(p, (0..100).collect::<Vec<_>>());
        p.sort_unstable();
        assert_eq!(p, (0..100).collect::<Vec<_>>());
    }
}
