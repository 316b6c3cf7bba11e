//! Moving and adding rows.

use crate::call::{Add, Broadcast, ColumnSum, Gather, Scatter, Zero};
use crate::cpu::Cx;
use crate::isa::isa_fn;

pub fn add(cx: &mut Cx, c: &Add) {
    // `y` may be `a` itself, so `a` is read through the part that is written when they are the same memory.
    let in_place = c.a.home == c.y.home && c.a.offset == c.y.offset;
    let (a, b) = (cx.memory.rows::<f32>(&c.a), cx.memory.rows::<f32>(&c.b));
    let y = cx.memory.rows_mut::<f32>(&c.y);
    let isa = cx.isa;
    cx.by_blocks(y.len(), y.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { y.part(rows.clone(), 0..y.cols()) };
        for (i, r) in rows.enumerate() {
            if !in_place {
                part.row(i).copy_from_slice(a.row(r));
            }
            add_scaled(isa, part.row(i), b.row(r), c.scale);
        }
    });
}

isa_fn! {
    fn add_scaled(y: &mut [f32], b: &[f32], scale: f32) {
        for (y, b) in y.iter_mut().zip(b) {
            *y += scale * b;
        }
    }
}

pub fn broadcast(cx: &mut Cx, c: &Broadcast) {
    let row = cx.memory.rows::<f32>(&c.row).vector();
    let out = cx.memory.rows_mut::<f32>(&c.out);
    cx.by_blocks(out.len(), out.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { out.part(rows.clone(), 0..out.cols()) };
        (0..rows.len()).for_each(|i| part.row(i).copy_from_slice(row));
    });
}

/// A task owns a strip of columns and adds up the rows in order.
pub fn column_sum(cx: &mut Cx, c: &ColumnSum) {
    let x = cx.memory.rows::<f32>(&c.x);
    let out = cx.memory.rows_mut::<f32>(&c.out);
    cx.by_strips(x.len(), x.cols(), |cols| {
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { out.part(0..1, cols.clone()) };
        for r in 0..x.len() {
            for (o, x) in part.row(0).iter_mut().zip(&x.row(r)[cols.clone()]) {
                *o += x;
            }
        }
    });
}

pub fn gather(cx: &mut Cx, c: &Gather) {
    let (x, index) = (cx.memory.rows::<f32>(&c.x), cx.memory.rows::<u32>(&c.rows));
    let out = cx.memory.rows_mut::<f32>(&c.out);
    cx.by_blocks(out.len(), out.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { out.part(rows.clone(), 0..out.cols()) };
        for (i, r) in rows.enumerate() {
            part.row(i).copy_from_slice(x.row(index.column()[r] as usize));
        }
    });
}

pub fn scatter(cx: &mut Cx, c: &Scatter) {
    let (dy, index) = (cx.memory.rows::<f32>(&c.dy), cx.memory.rows::<u32>(&c.rows));
    let dx = cx.memory.rows_mut::<f32>(&c.dx);
    let index = index.column();
    cx.by_blocks(dx.len(), dx.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { dx.part(rows.clone(), 0..dx.cols()) };
        (0..rows.len()).for_each(|i| part.row(i).fill(0.0));
        let first = index.partition_point(|&r| (r as usize) < rows.start);
        for (i, &r) in index.iter().enumerate().skip(first).take_while(|(_, r)| (**r as usize) < rows.end) {
            part.row(r as usize - rows.start).copy_from_slice(dy.row(i));
        }
    });
}

pub fn zero(cx: &mut Cx, c: &Zero) {
    let x = cx.memory.rows_mut::<f32>(&c.x);
    cx.by_blocks(x.len(), x.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { x.part(rows.clone(), 0..x.cols()) };
        (0..rows.len()).for_each(|i| part.row(i).fill(0.0));
    });
}
