//! Noise on embeddings that is a function of key and element index.

use planish_base::rng::{Purpose, philox4x32_10};

use crate::call::{Noise, SEGMENT_WORDS};
use crate::cpu::Cx;
use crate::isa::isa_fn;

/// Elements that share a counter.
const GROUP: usize = 4;
/// The last word of the counter: dropout, which shares the key, counts its streams from 0.
const STREAM: u32 = u32::MAX - Purpose::Noise as u32;

pub fn noise(cx: &mut Cx, c: &Noise) {
    let key = *cx.memory.rows::<u32>(&c.key).vector().first_chunk::<4>().expect("a key of four words");
    let segments = cx.memory.rows::<u32>(&c.segments);
    assert_eq!(segments.cols(), SEGMENT_WORDS);
    let x = cx.memory.rows_mut::<f32>(&c.x);
    let (width, isa) = (x.cols(), cx.isa);
    let groups = width.div_ceil(GROUP) as u64;
    // A group is several times an element's work elsewhere.
    cx.by_blocks(x.len(), 8 * width, |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { x.part(rows.clone(), 0..width) };
        for (i, r) in rows.enumerate() {
            let of_row = |s: &usize| {
                let segment = segments.row(*s);
                (segment[0] as usize..(segment[0] + segment[1]) as usize).contains(&r)
            };
            // A row of no segment has no noise.
            let Some(s) = (0..segments.len()).find(of_row) else { continue };
            let elements = f64::from(segments.row(s)[1]) * width as f64;
            let size = (f64::from(c.alpha) / elements.sqrt()) as f32;
            row(isa, part.row(i), r as u64 * groups, &key, size);
        }
    });
}

isa_fn! {
    /// Group g of the row takes the random words with index `first` + g, as numbers from -1 to 1.
    fn row(x: &mut [f32], first: u64, key: &[u32; 4], size: f32) {
        for (g, part) in x.chunks_mut(GROUP).enumerate() {
            let index = first + g as u64;
            let counter = [index as u32, key[3] << 16 ^ (index >> 32) as u32, key[2], STREAM];
            let words = philox4x32_10(counter, [key[0], key[1]]);
            for (x, word) in part.iter_mut().zip(words) {
                *x += size * (word as i32 as f32 * (1.0 / 2_147_483_648.0));
            }
        }
    }
}
