//! Dropout with a mask that is a function of key, stream and element index.

use planish_base::rng::philox4x32_10;

use crate::call::Dropout;
use crate::cpu::Cx;
use crate::isa::isa_fn;

/// Elements that share a counter.
const GROUP: usize = 4;
/// Groups side by side.
const SIDE: usize = 16;

pub fn dropout(cx: &mut Cx, c: &Dropout) {
    let x = cx.memory.rows::<f32>(&c.x);
    let key = cx.memory.rows::<u32>(&c.key).vector();
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let (threshold, scale) = ((f64::from(c.p) * 4_294_967_296.0) as u32, 1.0 / (1.0 - c.p));
    let groups = x.cols().div_ceil(GROUP) as u64;
    let isa = cx.isa;
    // A group is several times an element's work elsewhere.
    cx.by_blocks(x.len(), 8 * x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { y.part(rows.clone(), 0..y.cols()) };
        for (i, r) in rows.enumerate() {
            row(isa, x.row(r), part.row(i), r as u64 * groups, key, c.stream, threshold, scale);
        }
    });
}

isa_fn! {
    /// Group g of the row takes the random words with index `first` + g.
    fn row(x: &[f32], y: &mut [f32], first: u64, key: &[u32], stream: u32, threshold: u32, scale: f32) {
        let key = *key.first_chunk::<4>().expect("a key of four words");
        let words = |index: u64| {
            let counter = [index as u32, key[3] << 16 ^ (index >> 32) as u32, key[2], stream];
            philox4x32_10(counter, [key[0], key[1]])
        };
        let keep = |x: f32, word: u32| if word < threshold { 0.0 } else { x * scale };
        for (part, start) in y.chunks_mut(GROUP * SIDE).zip((0..).step_by(SIDE)) {
            let mut random = [[0u32; GROUP]; SIDE];
            for s in 0..SIDE {
                random[s] = words(first + (start + s) as u64);
            }
            let x = &x[start * GROUP..];
            for ((y, x), w) in part.iter_mut().zip(x).zip(random.as_flattened()) {
                *y = keep(*x, *w);
            }
        }
    }
}
