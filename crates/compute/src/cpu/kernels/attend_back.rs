//! The backward pass of causal attention. Scores are computed again from q and k; P = exp(S - lse).
//!
//! First D = rowsum(dout * out). Then a task for each tile of keys of a kv head walks over the queries that see it, the
//! last ones first, with dS = P * (dO V' - D): it gathers dV = P' dO and dK = dS' Q, and adds dS K to dQ when the
//! task of the keys before has added its own. All tasks meet their queries in the same order, so one that starts a
//! step later than the task before it does not wait.

use planish_base::math::exp;

use super::lanes;
use super::segments::{Mask, Queries, Segment, Segments};
use super::tile::{self, KEYS, padded};
use super::turns::Turn;
use crate::call::{AttendBack, Heads, Store};
use crate::cpu::Cx;
use crate::cpu::fma::LANES;
use crate::cpu::memory::{Rows, RowsMut};
use crate::cpu::pool::Scratch;
use crate::isa::{Isa, isa_fn};

/// What every task reads.
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

/// What the tasks write.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    dq: RowsMut<'a, f32>,
    dk: RowsMut<'a, f32>,
    dv: RowsMut<'a, f32>,
}

pub fn attend_back(cx: &mut Cx, c: &AttendBack) {
    let heads = c.heads;
    let (dout, out) = (cx.memory.rows::<f32>(&c.dout), cx.memory.rows::<f32>(&c.out));
    row_products(cx, heads, dout, out, cx.memory.rows_mut(&c.delta));
    let x = Inputs {
        isa: cx.isa,
        heads,
        q: cx.memory.rows(&c.q),
        k: cx.memory.rows(&c.k),
        v: cx.memory.rows(&c.v),
        lse: cx.memory.rows(&c.lse),
        dout,
        delta: cx.memory.rows(&c.delta),
    };
    let y = Outputs {
        dq: cx.memory.rows_mut(&c.dq),
        dk: cx.memory.rows_mut(&c.dk),
        dv: cx.memory.rows_mut(&c.dv),
    };
    let segments = Segments(cx.memory.rows(&c.segments));
    let tasks = segments.tiles(KEYS) * heads.kv;
    let turns = cx.turns.start(tasks);
    cx.pool.run(tasks, &|task, scratch| {
        let (segment, first) = segments.tile(task / heads.kv, KEYS);
        let before = if first == 0 { None } else { Some(task - heads.kv) };
        let keys = KeyTile { segment, first, n: KEYS.min(segment.len - first), kv_head: task % heads.kv };
        key_tile(x, y, keys, turns.of(task, before), scratch);
    });
}

/// delta[r][h] = sum over the head's columns of dout * out.
fn row_products(cx: &mut Cx, heads: Heads, dout: Rows<f32>, out: Rows<f32>, delta: RowsMut<f32>) {
    let isa = cx.isa;
    cx.by_blocks(delta.len(), out.cols(), |rows, _| {
        // SAFETY: tasks own disjoint rows.
        let mut part = unsafe { delta.part(rows.clone(), 0..heads.query) };
        for (i, r) in rows.enumerate() {
            dots(isa, dout.row(r), out.row(r), heads.width, part.row(i));
        }
    });
}

isa_fn! {
    fn dots(a: &[f32], b: &[f32], width: usize, out: &mut [f32]) {
        for (d, (a, b)) in out.iter_mut().zip(a.chunks_exact(width).zip(b.chunks_exact(width))) {
            *d = lanes::sum_of([a, b], |[a, b]| a * b);
        }
    }
}

/// The keys of a task.
#[derive(Clone, Copy)]
struct KeyTile {
    segment: Segment,
    /// The first key within the segment.
    first: usize,
    n: usize,
    kv_head: usize,
}

/// Scratch of a task: its keys and values, a tile of queries, P and dS, and the sums.
struct Tiles<'a> {
    k: &'a mut [f32],
    k_t: &'a mut [f32],
    v_t: &'a mut [f32],
    q: &'a mut [f32],
    dout: &'a mut [f32],
    p: &'a mut [[f32; KEYS]],
    ds: &'a mut [[f32; KEYS]],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    lse: &'a mut [f32],
    delta: &'a mut [f32],
}

impl Tiles<'_> {
    fn new(scratch: &mut Scratch, rows: usize, wide: usize) -> Tiles<'_> {
        let mut rest = scratch.floats(5 * KEYS * wide + rows * (3 * wide + 2 * KEYS + 2));
        let mut take = |n: usize| rest.split_off_mut(..n).expect("the sizes add up");
        Tiles {
            k: take(KEYS * wide),
            k_t: take(KEYS * wide),
            v_t: take(KEYS * wide),
            q: take(rows * wide),
            dout: take(rows * wide),
            p: take(rows * KEYS).as_chunks_mut().0,
            ds: take(rows * KEYS).as_chunks_mut().0,
            dq: take(rows * wide),
            dk: take(KEYS * wide),
            dv: take(KEYS * wide),
            lse: take(rows),
            delta: take(rows),
        }
    }
}

fn key_tile(x: Inputs, y: Outputs, keys: KeyTile, mut turn: Turn, scratch: &mut Scratch) {
    let (heads, width, wide) = (x.heads, x.heads.width, padded(x.heads.width));
    let KeyTile { segment, first, n, kv_head } = keys;
    let group = heads.query / heads.kv;
    let size = Queries::of_tile(group);
    let (row, col) = (segment.first_row + first, kv_head * width);
    let mut t = Tiles::new(scratch, size * group, wide);
    tile::load(x.isa, x.k, row, n, col, width, heads.scale, t.k);
    tile::load_transposed(x.k, row, n, col, width, t.k_t);
    tile::load_transposed(x.v, row, n, col, width, t.v_t);
    t.dk.fill(0.0);
    t.dv.fill(0.0);
    for start in (first / size * size..segment.len).step_by(size).rev() {
        // Queries before the keys see none of them.
        let (position, end) = (start.max(first), segment.len.min(start + size));
        let (row, head) = (segment.first_row + position, kv_head * group);
        let queries = Queries { row, position, n: end - position, head, heads: group };
        t.add_queries(x, keys, queries);
        turn.take(|| {
            // SAFETY: only tasks of this kv head and segment write here, and these take turns.
            let mut part = unsafe { y.dq.part(queries.batch_rows(), queries.cols(heads)) };
            let mut rows = t.dq.chunks_exact(wide);
            for i in 0..queries.n {
                for (to, row) in part.row(i).chunks_exact_mut(width).zip(&mut rows) {
                    add(to, row, first == 0);
                }
            }
        });
    }
    for (sum, out) in [(t.dk, y.dk), (t.dv, y.dv)] {
        // SAFETY: a tile of keys of a kv head has one task.
        let mut part = unsafe { out.part(row..row + n, col..col + width) };
        for (j, s) in sum.chunks_exact(wide).take(n).enumerate() {
            part.row(j).copy_from_slice(&s[..width]);
        }
    }
}

fn add(to: &mut [f32], row: &[f32], replace: bool) {
    let terms = to.iter_mut().zip(row);
    if replace { terms.for_each(|(t, s)| *t = *s) } else { terms.for_each(|(t, s)| *t += s) }
}

impl Tiles<'_> {
    /// Adds to dK and dV what the queries give to the loaded keys, and leaves what these give to dQ.
    fn add_queries(&mut self, x: Inputs, keys: KeyTile, t: Queries) {
        let (width, wide, m, mask) = (x.heads.width, padded(x.heads.width), t.rows(), t.mask(keys.first));
        tile::load_queries(x.isa, x.q, t, x.heads, x.heads.scale, self.q);
        tile::load_queries(x.isa, x.dout, t, x.heads, 1.0, self.dout);
        for (i, row) in t.batch_rows().enumerate() {
            let (rows, heads) = (i * t.heads..(i + 1) * t.heads, t.head..t.head + t.heads);
            self.lse[rows.clone()].copy_from_slice(&x.lse.row(row)[heads.clone()]);
            self.delta[rows].copy_from_slice(&x.delta.row(row)[heads]);
        }
        let (p, ds) = (&mut self.p[..m], &mut self.ds[..m]);
        tile::scores(x.isa, m, width, self.q, self.k_t, p, mask);
        tile::scores(x.isa, m, width, self.dout, self.v_t, ds, mask);
        gradients(x.isa, p, ds, mask, self.lse, self.delta);
        tile::gather(x.isa, keys.n, m, p, self.dout, wide, self.dv, mask);
        tile::gather(x.isa, keys.n, m, ds, self.q, wide, self.dk, mask);
        tile::weigh(x.isa, m, ds, self.k, wide, self.dq, mask, Store::Replace);
    }
}

isa_fn! {
    /// p holds scores and becomes P; ds holds dP and becomes dS; both 0 where the key is not visible.
    fn gradients(p: &mut [[f32; KEYS]], ds: &mut [[f32; KEYS]], mask: Mask, lse: &[f32], delta: &[f32]) {
        for (r, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
            let (visible, lse, delta) = (mask.keys(r), lse[r], delta[r]);
            let seen = visible.div_ceil(LANES);
            let chunks = p.as_chunks_mut::<LANES>().0.iter_mut().zip(ds.as_chunks_mut::<LANES>().0);
            for (p, ds) in chunks.take(seen) {
                for l in 0..LANES {
                    p[l] = exp(p[l] - lse);
                    ds[l] = p[l] * (ds[l] - delta);
                }
            }
            p[visible..].fill(0.0);
            ds[visible..].fill(0.0);
        }
    }
}
