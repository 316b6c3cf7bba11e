//! Causal attention inside segments.

use planish_compute::View;
use planish_compute::call::{self, Attend, AttendBack, AttendBlocks, Heads, KvAppend, Store};

use super::Example;
use crate::tape::{Tape, Var};

/// What attention needs beside q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// [segments, 4]: first row, rows, first position, KV slot.
    pub segments: View,
    /// Shape of the heads.
    pub heads: Heads,
}

/// The KV blocks of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// [slots, blocks]: the block that holds positions 64 i .. of a slot.
    pub table: View,
    /// [blocks * kv heads * width, 64]: keys, transposed inside a block.
    pub k: View,
    /// [blocks * kv heads * 64, width]: values.
    pub v: View,
}

/// Attention of q [n, heads * width] over k and v [n, kv heads * width] of the same segment, up to its own row.
pub fn attend(t: &mut Tape, q: Var, k: Var, v: Var, p: &Attention) -> Var {
    let (qv, kv, vv) = (t.view(q), t.view(k), t.view(v));
    let (heads, segments) = (p.heads, p.segments);
    assert_eq!((qv.cols, kv.cols), (heads.query * heads.width, heads.kv * heads.width), "shapes of heads");
    let (out, lse) = (t.temp(qv.rows, qv.cols), t.temp(qv.rows, heads.query));
    t.call(Attend { q: qv, k: kv, v: vv, segments, out, lse, heads });
    let needs = t.needs_grad(q) || t.needs_grad(k) || t.needs_grad(v);
    // P = exp(S - lse), D = rowsum(dout out): dV = P' dout, dS = P (dout V' - D), dQ = scale dS K, dK = scale dS' Q
    t.push(out, needs, move |t, dout| {
        let [(dq, a), (dk, b), (dv, c)] = [q, k, v].map(|x| t.grad_into(x));
        assert!([a, b, c] == [Store::Replace; 3], "q, k and v have one use");
        let delta = t.temp(qv.rows, heads.query);
        t.call(AttendBack { q: qv, k: kv, v: vv, segments, out, lse, dout, dq, dk, dv, delta, heads });
    })
}

/// Appends k and v to the blocks and attends over everything the slot then holds. Not differentiable.
pub fn attend_blocks(t: &mut Tape, q: Var, k: Var, v: Var, p: &Attention, blocks: &Blocks) -> Var {
    let (q, k, v) = (t.view(q), t.view(k), t.view(v));
    let (segments, heads, table) = (p.segments, p.heads, blocks.table);
    let (k_blocks, v_blocks) = (blocks.k, blocks.v);
    t.call(KvAppend { k, v, segments, table, k_blocks, v_blocks, heads });
    let out = t.temp(q.rows, q.cols);
    t.call(AttendBlocks { q, segments, table, k_blocks, v_blocks, out, heads });
    t.push(out, false, |_, _| {})
}

/// Grouped heads and three segments, of which one is longer than a tile of keys.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let heads = call::Heads { query: 4, kv: 2, width: 8, scale: 0.3 };
    let segments = e.words(3, 4, &[0, 3, 0, 0, 3, 1, 0, 0, 4, 70, 0, 0]);
    let qkv = e.param(74, (4 + 2 + 2) * 8);
    let qkv = t.leaf(&qkv);
    let (q, k, v) = (t.columns(qkv, 0, 32), t.columns(qkv, 32, 16), t.columns(qkv, 48, 16));
    attend(t, q, k, v, &Attention { segments, heads })
}
