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
    /// The code of the least number of each cell, those of positive numbers first. A cell is the numbers with one upper
    /// half of their bits, sign, exponent and seven bits of the mantissa: it has one border at most.
    least: [u8; 2 * CELLS],
}

/// For values of both signs.
pub static SIGNED: Map = Map::new(1);
/// For values that are not negative.
pub static UNSIGNED: Map = Map::new(2);

/// The upper half of 2^-23, the first cell: it takes smaller numbers too, which are closer to 0 than any border.
const FIRST_CELL: u32 = (127 - 23) << 7;
/// Cells of one sign; the last is that of 1.
const CELLS: usize = (23 << 7) + 1;

/// Values that are looked up together.
const CHUNK: usize = 64;

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
        let borders = Map::borders(&values);
        Map { values, borders, least: Map::least(&borders) }
    }

    /// Walks through the cells in ascending order, the negative ones from the last.
    const fn least(borders: &[f32; 256]) -> [u8; 2 * CELLS] {
        let mut least = [0u8; 2 * CELLS];
        let (mut i, mut code) = (0, 0u8);
        while i < 2 * CELLS {
            let negative = i < CELLS;
            let cell = if negative { CELLS - 1 - i } else { i - CELLS };
            let bits = (FIRST_CELL + cell as u32) << 16;
            let lowest = if negative { -f32::from_bits(bits | 0xffff) } else { f32::from_bits(bits) };
            while borders[code as usize] < lowest {
                code += 1;
            }
            least[if negative { CELLS + cell } else { cell }] = code;
            i += 1;
        }
        least
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

    /// The codes of the values nearest to x in [-1, 1]; of two, the lower. One loop does one thing, so that all but the
    /// look-up of a cell become vector code.
    #[inline(always)]
    fn nearest(&self, x: &[f32; CHUNK]) -> [u8; CHUNK] {
        let (mut cells, mut codes) = ([0u32; CHUNK], [0u8; CHUNK]);
        for i in 0..CHUNK {
            let bits = x[i].to_bits();
            let magnitude = ((bits & 0x7fff_ffff) >> 16).clamp(FIRST_CELL, FIRST_CELL + CELLS as u32 - 1);
            cells[i] = magnitude - FIRST_CELL + (bits >> 31) * CELLS as u32;
        }
        for i in 0..CHUNK {
            codes[i] = self.least[cells[i] as usize];
        }
        for i in 0..CHUNK {
            codes[i] += u8::from(self.borders[usize::from(codes[i])] < x[i]);
        }
        codes
    }

    /// Values of codes with this scale.
    #[inline(always)]
    pub fn decode(&self, codes: &[u8], scale: f32, out: &mut [f32]) {
        for (x, code) in out.iter_mut().zip(codes) {
            *x = self.values[usize::from(*code)] * scale;
        }
    }

    /// Codes of values; returns their scale, the largest magnitude.
    #[inline(always)]
    pub fn encode(&self, values: &[f32], codes: &mut [u8]) -> f32 {
        let scale = largest(values);
        // A block of zeros has no scale, and one below the normal numbers no inverse.
        let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
        for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)) {
            let mut units = [0f32; CHUNK];
            units.iter_mut().zip(values).for_each(|(unit, x)| *unit = x * inverse);
            codes.copy_from_slice(&self.nearest(&units)[..codes.len()]);
        }
        scale
    }
}

/// The largest magnitude, in lanes, since one maximum would wait for the one before.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let mut best = [0f32; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for l in 0..best.len() {
            best[l] = if chunk[l].abs() > best[l] { chunk[l].abs() } else { best[l] };
        }
    }
    best.iter().chain(rest).fold(0f32, |m, x| m.max(x.abs()))
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

    fn code(map: &Map, x: f32) -> usize {
        map.nearest(&[x; CHUNK])[0].into()
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
                let got = distance(&map.values[code(map, x)]);
                assert!(got <= best + 1e-9, "{x}: off by {got:e}, best {best:e}");
            }
            map.values.iter().enumerate().for_each(|(i, v)| assert_eq!(code(map, *v), i));
        }
    }

    /// A border and the next number above it have neighbouring codes, wherever the border lies in its cell.
    #[test]
    fn codes_change_at_the_borders() {
        for map in [&SIGNED, &UNSIGNED] {
            for (i, border) in map.borders[..255].iter().enumerate() {
                assert_eq!(
                    (code(map, *border), code(map, border.next_up())),
                    (i, i + 1),
                    "border {border:e}"
                );
            }
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
