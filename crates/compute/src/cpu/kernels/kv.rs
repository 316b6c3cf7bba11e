//! Appending keys and values to KV blocks.

use super::segments::Segments;
use crate::call::{KV_BLOCK, KvAppend};
use crate::cpu::Cx;

pub fn append(cx: &mut Cx, c: &KvAppend) {
    let (k, v) = (cx.memory.rows::<f32>(&c.k), cx.memory.rows::<f32>(&c.v));
    let (segments, table) = (Segments(cx.memory.rows(&c.segments)), cx.memory.rows::<u32>(&c.table));
    let (k_blocks, v_blocks) =
        (cx.memory.rows_mut::<f32>(&c.k_blocks), cx.memory.rows_mut::<f32>(&c.v_blocks));
    let (kv, width) = (c.heads.kv, c.heads.width);
    cx.by_blocks(kv, k.len() * width, |heads, _| {
        for head in heads {
            for s in segments.iter() {
                for i in 0..s.len {
                    let position = s.first_position + i;
                    let block = table.row(s.slot)[position / KV_BLOCK] as usize * kv + head;
                    let (row, at) = (s.first_row + i, position % KV_BLOCK);
                    let cols = head * width..(head + 1) * width;
                    // SAFETY: tasks own disjoint heads and with them disjoint rows of both.
                    let mut keys = unsafe { k_blocks.part(block * width..(block + 1) * width, at..at + 1) };
                    for (e, x) in k.row(row)[cols.clone()].iter().enumerate() {
                        keys.row(e)[0] = *x;
                    }
                    let v_row = block * KV_BLOCK + at;
                    // SAFETY: as above.
                    let mut values = unsafe { v_blocks.part(v_row..v_row + 1, 0..width) };
                    values.row(0).copy_from_slice(&v.row(row)[cols]);
                }
            }
        }
    });
}
