//! Embedding rows and their gradient.

use crate::call::{Embed, EmbedBack};
use crate::cpu::Cx;
use crate::quant::Quant;

pub fn embed(cx: &mut Cx, c: &Embed) {
    let ids = cx.memory.rows::<u32>(&c.ids);
    let out = cx.memory.rows_mut::<f32>(&c.out);
    let quant = Quant::of(c.table.dtype).expect("the model checks tensor types when it is loaded");
    let (bytes, stride) = (cx.memory.bytes(&c.table), c.table.bytes_of(c.table.stride) as usize);
    let isa = cx.isa;
    cx.by_blocks(out.len(), out.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { out.part(rows.clone(), 0..out.cols()) };
        for (i, r) in rows.enumerate() {
            let id = ids.column()[r] as usize;
            assert!(id < c.table.rows, "token id {id} of {}", c.table.rows);
            quant.decode_range(isa, &bytes[id * stride..], 0, part.row(i));
        }
    });
}

/// A task owns a strip of columns, so that two tokens with one id never meet.
pub fn embed_back(cx: &mut Cx, c: &EmbedBack) {
    let ids = cx.memory.rows::<u32>(&c.ids);
    let dy = cx.memory.rows::<f32>(&c.dy);
    let dtable = cx.memory.rows_mut::<f32>(&c.dtable);
    cx.by_strips(dy.len(), dy.cols(), |cols| {
        // SAFETY: tasks own disjoint columns.
        let mut part = unsafe { dtable.part(0..dtable.len(), cols.clone()) };
        for (r, &id) in ids.column().iter().enumerate() {
            for (t, d) in part.row(id as usize).iter_mut().zip(&dy.row(r)[cols.clone()]) {
                *t += d;
            }
        }
    });
}
