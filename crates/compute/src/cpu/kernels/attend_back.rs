//! The backward pass of causal attention. Scores are computed again from q and k; P = exp(S - lse).
//!
//! First D = rowsum(dout * out). Then a task for each tile of keys of a kv head gathers
//! dV = P' dO and dK = dS' Q over the queries that see it, dS = P * (dO V' - D); last a task for each tile of
//! queries of a head gathers dQ = dS K. Each output has one writer, at the price of computing the scores twice.

use planish_base::math::exp;

use super::attend::{Segment, Segments};
use super::lanes;
use super::tile::{self, KEYS, Left, QUERIES, padded};
use crate::call::{AttendBack, Heads};
use crate::cpu::Cx;
use crate::cpu::memory::{Rows, RowsMut};
use crate::cpu::pool::Scratch;
use crate::isa::{Isa, isa_fn};

/// What both passes read.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    isa: Isa,
    heads: Heads,
    q: Rows<'a, f32>,
    k: Rows<'a, f32>,
    v: Rows<'a, f32>,
    lse: Rows<'a, f32>,
    dout: Rows<'a, f32>,
    delta: Rows<'a, f32>,
}

pub fn attend_back(cx: &mut Cx, c: &AttendBack) {
    let (heads, isa) = (c.heads, cx.isa);
    let (dout, out) = (cx.memory.rows::<f32>(&c.dout), cx.memory.rows::<f32>(&c.out));
    row_products(cx, heads, dout, out, cx.memory.rows_mut(&c.delta));
    let x = Inputs {
        isa,
        heads,
        q: cx.memory.rows(&c.q),
        k: cx.memory.rows(&c.k),
        v: cx.memory.rows(&c.v),
        lse: cx.memory.rows(&c.lse),
        dout,
        delta: cx.memory.rows(&c.delta),
    };
    let segments = Segments(cx.memory.rows(&c.segments));
    let (dk, dv) = (cx.memory.rows_mut::<f32>(&c.dk), cx.memory.rows_mut::<f32>(&c.dv));
    cx.pool.run(segments.tiles(KEYS) * heads.kv, &|task, scratch| {
        let (segment, first) = segments.tile(task / heads.kv, KEYS);
        key_tile(x, segment, first, task % heads.kv, dk, dv, scratch);
    });
    let dq = cx.memory.rows_mut::<f32>(&c.dq);
    cx.pool.run(segments.tiles(QUERIES) * heads.query, &|task, scratch| {
        let (segment, first) = segments.tile(task / heads.query, QUERIES);
        query_tile(x, segment, first, task % heads.query, dq, scratch);
    });
}

/// delta[r][h] = sum over the head's columns of dout * out.
fn row_products(cx: &mut Cx, heads: Heads, dout: Rows<f32>, out: Rows<f32>, delta: RowsMut<f32>) {
    let isa = cx.isa;
    cx.by_blocks(delta.len(), out.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { delta.part(rows.clone(), 0..heads.query) };
        for (i, r) in rows.enumerate() {
            for (h, d) in part.row(i).iter_mut().enumerate() {
                let cols = h * heads.width..(h + 1) * heads.width;
                *d = dot(isa, &dout.row(r)[cols.clone()], &out.row(r)[cols]);
            }
        }
    });
}

isa_fn! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        lanes::sum(a.len(), |i| a[i] * b[i])
    }
}

/// Scratch of a task: tiles of q and dout, keys and values transposed, P and dS, and two sums.
struct Tiles<'a> {
    q: &'a mut [f32],
    dout: &'a mut [f32],
    k_t: &'a mut [f32],
    v_t: &'a mut [f32],
    p: &'a mut [f32],
    ds: &'a mut [f32],
    sum_a: &'a mut [f32],
    sum_b: &'a mut [f32],
}

impl Tiles<'_> {
    fn new(scratch: &mut Scratch, wide: usize) -> Tiles<'_> {
        let mut rest = scratch.floats((2 * QUERIES + 4 * KEYS) * wide + 2 * QUERIES * KEYS);
        let mut take = |n: usize| rest.split_off_mut(..n).expect("the sizes add up");
        Tiles {
            q: take(QUERIES * wide),
            dout: take(QUERIES * wide),
            k_t: take(KEYS * wide),
            v_t: take(KEYS * wide),
            p: take(QUERIES * KEYS),
            ds: take(QUERIES * KEYS),
            sum_a: take(KEYS * wide),
            sum_b: take(KEYS * wide),
        }
    }

    /// P and dS of query rows first .. first + n against the loaded keys, which begin at `key` of the segment.
    fn scores(&mut self, x: Inputs, segment: Segment, first: usize, n: usize, head: usize, key: usize) {
        let (width, wide) = (x.heads.width, padded(x.heads.width));
        let row = segment.first_row + first;
        tile::load(x.q, row, n, head * width, width, x.heads.scale, self.q);
        tile::load(x.dout, row, n, head * width, width, 1.0, self.dout);
        let left = |data| Left { data, outer: wide, inner: 1 };
        tile::product(x.isa, n, KEYS, KEYS, width, left(self.q), self.k_t, self.p, false);
        tile::product(x.isa, n, KEYS, KEYS, width, left(self.dout), self.v_t, self.ds, false);
        for i in 0..n {
            let at = i * KEYS..(i + 1) * KEYS;
            let visible = (first + i + 1).saturating_sub(key).min(KEYS);
            let (lse, delta) = (x.lse.row(row + i)[head], x.delta.row(row + i)[head]);
            gradients(x.isa, &mut self.p[at.clone()], &mut self.ds[at], visible, lse, delta);
        }
    }
}

isa_fn! {
    /// p holds scores and becomes P; ds holds dP and becomes dS; both 0 where the key is not visible.
    fn gradients(p: &mut [f32], ds: &mut [f32], visible: usize, lse: f32, delta: f32) {
        for (p, ds) in p[..visible].iter_mut().zip(&mut ds[..visible]) {
            *p = exp(*p - lse);
            *ds = *p * (*ds - delta);
        }
        p[visible..].fill(0.0);
        ds[visible..].fill(0.0);
    }
}

fn key_tile(
    x: Inputs,
    segment: Segment,
    first: usize,
    kv_head: usize,
    dk: RowsMut<f32>,
    dv: RowsMut<f32>,
    scratch: &mut Scratch,
) {
    let (width, wide) = (x.heads.width, padded(x.heads.width));
    let n = KEYS.min(segment.len - first);
    let (row, col) = (segment.first_row + first, kv_head * width);
    let mut t = Tiles::new(scratch, wide);
    tile::load_transposed(x.k, row, n, col, width, t.k_t);
    tile::load_transposed(x.v, row, n, col, width, t.v_t);
    t.sum_a.fill(0.0);
    t.sum_b.fill(0.0);
    let group = x.heads.query / x.heads.kv;
    for head in kv_head * group..(kv_head + 1) * group {
        // The first tile of queries that sees a key of this tile; KEYS is a multiple of QUERIES.
        for query in (first..segment.len).step_by(QUERIES) {
            let m = QUERIES.min(segment.len - query);
            t.scores(x, segment, query, m, head, first);
            let transposed = |data| Left { data, outer: 1, inner: KEYS };
            tile::product(x.isa, n, wide, wide, m, transposed(t.ds), t.q, t.sum_a, true);
            tile::product(x.isa, n, wide, wide, m, transposed(t.p), t.dout, t.sum_b, true);
        }
    }
    for (sum, out) in [(t.sum_a, dk), (t.sum_b, dv)] {
        // SAFETY: a tile of keys of a kv head has one task.
        let mut part = unsafe { out.part(row..row + n, col..col + width) };
        for (j, s) in sum.chunks_exact(wide).take(n).enumerate() {
            part.row(j).copy_from_slice(&s[..width]);
        }
    }
}

fn query_tile(
    x: Inputs,
    segment: Segment,
    first: usize,
    head: usize,
    dq: RowsMut<f32>,
    scratch: &mut Scratch,
) {
    let (width, wide) = (x.heads.width, padded(x.heads.width));
    let n = QUERIES.min(segment.len - first);
    let col = head / (x.heads.query / x.heads.kv) * width;
    let mut t = Tiles::new(scratch, wide);
    t.sum_a.fill(0.0);
    for key in (0..first + n).step_by(KEYS) {
        let keys = KEYS.min(segment.len - key);
        tile::load_transposed(x.k, segment.first_row + key, keys, col, width, t.k_t);
        tile::load_transposed(x.v, segment.first_row + key, keys, col, width, t.v_t);
        t.scores(x, segment, first, n, head, key);
        tile::load(x.k, segment.first_row + key, keys, col, width, x.heads.scale, t.sum_b);
        t.sum_b[keys * wide..].fill(0.0);
        tile::product(
            x.isa,
            n,
            wide,
            wide,
            KEYS,
            Left { data: t.ds, outer: KEYS, inner: 1 },
            t.sum_b,
            t.sum_a,
            true,
        );
    }
    let rows = segment.first_row + first..segment.first_row + first + n;
    // SAFETY: a tile of queries of a head has one task.
    let mut part = unsafe { dq.part(rows, head * width..(head + 1) * width) };
    for (i, s) in t.sum_a.chunks_exact(wide).take(n).enumerate() {
        part.row(i).copy_from_slice(&s[..width]);
    }
}
