//! Dynamic maps: 256 values in [-1, 1] whose relative distance is about the same over seven decades, for optimizer
//! state (Dettmers et al., 2022). No block type of a file holds them.
//!
//! Decade e of 0..7 holds n = 2^e values of each sign (2^(e + 1) where all values are positive), the centres of n equal
//! parts of [0.1, 1], times 10^(e - 6). Then there are 0 and 1. So the code of a value close to its block's largest has
//! six bits of precision, that of a millionth of it one.

/// Values in ascending order; a code is a place among them.
pub struct Map {
    values: [f32; 256],
    /// Halfway between neighbours; the last is never passed.
    borders: [f32; 256],
}

/// For values of both signs.
pub static SIGNED: Map = Map::new(1);
/// For values that are not negative.
pub static UNSIGNED: Map = Map::new(2);

/// Searches side by side.
const LANES: usize = 16;

const POWERS: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

impl Map {
    /// The first decade has `first` values of each sign; with 1 there are negative ones.
    const fn new(first: usize) -> Map {
        let mut values = [0f32; 256];
        // Zero stands after the negative values.
        let zero = if first == 1 { 127 } else { 0 };
        let (mut e, mut i) = (0, 0);
        while e < 7 {
            let n = first << e;
            let mut j = 0;
            while j < n {
                let value = (POWERS[e] * (0.1 + 0.9 * (j as f64 + 0.5) / n as f64)) as f32;
                i += 1;
                values[zero + i] = value;
                if zero > 0 {
                    values[zero - i] = -value;
                }
                j += 1;
            }
            e += 1;
        }
        values[255] = 1.0;
        Map { values, borders: Map::borders(&values) }
    }

    const fn borders(values: &[f32; 256]) -> [f32; 256] {
        let mut borders = [f32::INFINITY; 256];
        let mut i = 0;
        while i < 255 {
            borders[i] = ((values[i] as f64 + values[i + 1] as f64) / 2.0) as f32;
            i += 1;
        }
        borders
    }

    /// The values, by code.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The codes of the values nearest to each x; of two, the lower. Lanes search side by side, since a search alone
    /// waits for each of its eight comparisons.
    #[inline(always)]
    fn nearest<const N: usize>(&self, x: [f32; N]) -> [u8; N] {
        let mut codes = [0u8; N];
        for step in [128u8, 64, 32, 16, 8, 4, 2, 1] {
            for l in 0..N {
                let above = self.borders[usize::from(codes[l] + (step - 1))] < x[l];
                codes[l] += step * u8::from(above);
            }
        }
        codes
    }

    /// Values of codes with this scale.
    pub fn decode(&self, codes: &[u8], scale: f32, out: &mut [f32]) {
        for (x, code) in out.iter_mut().zip(codes) {
            *x = self.values[usize::from(*code)] * scale;
        }
    }

    /// Codes of values; returns their scale, the largest magnitude.
    pub fn encode(&self, values: &[f32], codes: &mut [u8]) -> f32 {
        let scale = values.iter().fold(0f32, |m, x| m.max(x.abs()));
        // A block of zeros has no scale.
        let unit = |x: f32| if scale > 0.0 { x / scale } else { 0.0 };
        let ((values, rest), (codes, last)) = (values.as_chunks::<LANES>(), codes.as_chunks_mut::<LANES>());
        for (codes, x) in codes.iter_mut().zip(values) {
            *codes = self.nearest(x.map(unit));
        }
        for (code, x) in last.iter_mut().zip(rest) {
            [*code] = self.nearest([unit(*x)]);
        }
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_are_symmetric() {
        for map in [&SIGNED, &UNSIGNED] {
            assert!(map.values.windows(2).all(|w| w[0] < w[1]));
            assert!(map.values.contains(&0.0) && map.values[255] == 1.0);
        }
        assert!((1..=127).all(|i| SIGNED.values[127 + i] == -SIGNED.values[127 - i]));
        // Centres of the only part of the first decade, and of the 64 (128) of the last.
        assert_eq!(SIGNED.values[128], 5.5e-7);
        assert_eq!(SIGNED.values[254], (0.1 + 0.9 * 63.5 / 64.0) as f32);
        assert_eq!(UNSIGNED.values[254], (0.1 + 0.9 * 127.5 / 128.0) as f32);
    }

    /// A value gets the code that a search through all of them finds.
    #[test]
    fn codes_are_the_nearest() {
        for map in [&SIGNED, &UNSIGNED] {
            for i in -3000..=3000i32 {
                let x = (i as f32 / 3000.0).powi(3);
                let x = if std::ptr::eq(map, &UNSIGNED) { x.abs() } else { x };
                let distance = |v: &f32| f64::from(*v - x).abs();
                let best = map.values.iter().map(distance).fold(f64::MAX, f64::min);
                let got = distance(&map.values[usize::from(map.nearest([x])[0])]);
                assert!(got <= best + 1e-9, "{x}: off by {got:e}, best {best:e}");
            }
            map.values.iter().enumerate().for_each(|(i, v)| assert_eq!(usize::from(map.nearest([*v])[0]), i));
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let (mut codes, mut out) = ([9u8; 4], [1f32; 4]);
        let scale = SIGNED.encode(&[0.0; 4], &mut codes);
        SIGNED.decode(&codes, scale, &mut out);
        assert_eq!((scale, out), (0.0, [0.0; 4]));
    }
}
