//! Rotary position embedding, in place.

use crate::call::{Direction, Rope, RopeStyle};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn rope(cx: &mut Cx, c: &Rope) {
    let positions = cx.memory.rows::<u32>(&c.positions);
    let table = cx.memory.rows::<f32>(&c.table);
    let x = cx.memory.rows_mut::<f32>(&c.x);
    let sign = if c.direction == Direction::Forward { 1.0 } else { -1.0 };
    let isa = cx.isa;
    cx.by_blocks(x.len(), x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { x.part(rows.clone(), 0..x.cols()) };
        for (i, r) in rows.enumerate() {
            let angles = table.row(positions.column()[r] as usize);
            for head in part.row(i).chunks_exact_mut(c.width) {
                match c.style {
                    RopeStyle::Interleaved => interleaved(isa, head, angles, sign),
                    RopeStyle::Halves => halves(isa, head, angles, sign),
                }
            }
        }
    });
}

isa_fn! {
    /// (x0, x1) becomes (x0 cos - x1 sin, x0 sin + x1 cos).
    fn interleaved(x: &mut [f32], angles: &[f32], sign: f32) {
        for (p, a) in x.as_chunks_mut::<2>().0.iter_mut().zip(angles.as_chunks::<2>().0) {
            let (cos, sin) = (a[0], sign * a[1]);
            *p = [p[0] * cos - p[1] * sin, p[0] * sin + p[1] * cos];
        }
    }
}

isa_fn! {
    /// As `interleaved`, with pairs (i, i + width / 2).
    fn halves(x: &mut [f32], angles: &[f32], sign: f32) {
        let (low, high) = x.split_at_mut(x.len() / 2);
        for ((x0, x1), a) in low.iter_mut().zip(high).zip(angles.as_chunks::<2>().0) {
            let (cos, sin) = (a[0], sign * a[1]);
            (*x0, *x1) = (*x0 * cos - *x1 * sin, *x0 * sin + *x1 * cos);
        }
    }
}
