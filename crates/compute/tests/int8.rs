//! Rounding of activations against its definition.

use planish_base::rng::{Purpose, Stream};
use planish_compute::Isa;
use planish_compute::int8::{BLOCK, Int8Rows};

/// A rounded block of a row.
struct Block {
    scale: f32,
    sum: f32,
    halves: [i16; 2],
    offsets: [i32; 4],
    q: [[i8; 16]; 2],
}

fn round(isa: Isa, x: &[f32]) -> Vec<Block> {
    let mut rows = Int8Rows::default();
    rows.reserve(2, x.len());
    rows.round(isa, 1, x);
    let row = rows.row(1);
    let block = |i| Block {
        scale: row.scales[i],
        sum: row.sums[i],
        halves: row.halves[i],
        offsets: row.offsets[i],
        q: row.q[i],
    };
    (0..x.len() / BLOCK).map(block).collect()
}

fn paths() -> impl Iterator<Item = Isa> {
    Isa::available()
}

/// Blocks of every magnitude from the smallest normal to the largest number.
#[test]
fn an_activation_is_off_by_half_a_step_at_most() {
    let stream = Stream::new(3, Purpose::Init, 0);
    let magnitudes = [1e-30f32, 1e-6, 1.0, 77.0, 1e30, 3e38];
    let x: Vec<f32> = (0..magnitudes.len() * BLOCK)
        .map(|i| magnitudes[i / BLOCK] * (stream.uniform(i as u64) as f32 * 2.0 - 1.0))
        .collect();
    for isa in paths() {
        for (x, block) in x.chunks(BLOCK).zip(round(isa, &x)) {
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert_eq!(block.scale, largest / 127.0);
            let halves = block.q.map(|q| q.iter().map(|q| i16::from(*q)).sum::<i16>());
            assert_eq!(block.halves, halves);
            let fours = block
                .q
                .map(|q| [0, 1, 2, 3].map(|i| q[4 * i..][..4].iter().map(|q| i32::from(*q)).sum::<i32>()));
            assert_eq!(block.offsets, [0, 1, 2, 3].map(|i| -128 * (fours[0][i] + fours[1][i])));
            assert_eq!(block.sum, block.scale * f32::from(halves[0] + halves[1]));
            let q = block.q.as_flattened();
            assert_eq!(q.iter().map(|q| q.abs()).max(), Some(127));
            for (x, q) in x.iter().zip(q) {
                // Half a step, and what three roundings of f32 may add to a number of up to 127 steps.
                let off = (f64::from(*x) / f64::from(block.scale) - f64::from(*q)).abs();
                assert!(
                    off <= 0.5 + 127.0 * 3.0 * f64::from(f32::EPSILON),
                    "{x} is {q} steps of {}",
                    block.scale
                );
            }
        }
    }
}

#[test]
fn nothing_and_next_to_nothing_are_zero() {
    for (isa, x) in paths().flat_map(|isa| [0.0, -0.0, 1e-37, f32::MIN_POSITIVE, 1e-45].map(|x| (isa, x))) {
        let [block] = &round(isa, &[x; BLOCK])[..] else { unreachable!("one block was rounded") };
        assert_eq!((block.q, block.halves, block.sum), ([[0; 16]; 2], [0; 2], 0.0), "{x}");
        assert!(block.scale <= f32::MIN_POSITIVE);
    }
}

#[test]
fn a_block_with_a_nan_or_an_infinity_has_no_finite_scale() {
    for (isa, bad) in paths().flat_map(|isa| [f32::NAN, -f32::NAN, f32::INFINITY].map(|x| (isa, x))) {
        let mut x = [1f32; 2 * BLOCK];
        x[40] = bad;
        let blocks = round(isa, &x);
        assert!(blocks[0].scale.is_finite() && !blocks[1].scale.is_finite() && !blocks[1].sum.is_finite());
    }
}
