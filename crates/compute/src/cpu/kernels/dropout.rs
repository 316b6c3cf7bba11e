//! Dropout with a mask that is a function of key, stream and element index.

use planish_base::rng::philox4x32_10;

use crate::call::Dropout;
use crate::cpu::Cx;

pub fn dropout(cx: &mut Cx, c: &Dropout) {
    let x = cx.memory.rows::<f32>(&c.x);
    let key = cx.memory.rows::<u32>(&c.key).vector();
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let (threshold, scale) = ((f64::from(c.p) * 4_294_967_296.0) as u32, 1.0 / (1.0 - c.p));
    let words = x.cols().div_ceil(4) as u64;
    // A group of four is several times an element's work elsewhere.
    cx.by_blocks(x.len(), 8 * x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { y.part(rows.clone(), 0..y.cols()) };
        for (i, r) in rows.enumerate() {
            for (g, (y, x)) in part.row(i).chunks_mut(4).zip(x.row(r).chunks(4)).enumerate() {
                let index = r as u64 * words + g as u64;
                let counter = [index as u32, key[3] << 16 ^ (index >> 32) as u32, key[2], c.stream];
                let random = philox4x32_10(counter, [key[0], key[1]]);
                for ((y, x), w) in y.iter_mut().zip(x).zip(random) {
                    *y = if w < threshold { 0.0 } else { x * scale };
                }
            }
        }
    });
}
