//! Causal attention with a streaming softmax: a task takes a tile of queries, with the heads that share a kv head,
//! through the tiles of keys, keeping for each row the largest score, the sum of exponentials and the weighted sum of
//! values. No matrix of all scores ever exists.

use planish_base::math::{exp, ln};

use super::segments::{Mask, Queries, Segment, Segments};
use super::tile::{self, KEYS, padded};
use crate::call::{Attend, AttendBlocks, Heads, Store};
use crate::cpu::Cx;
use crate::cpu::fma::LANES;
use crate::cpu::memory::{Rows, RowsMut};
use crate::cpu::pool::Scratch;
use crate::isa::{Isa, isa_fn};

/// Where keys and values come from: the rows of the batch, or KV blocks.
#[derive(Clone, Copy)]
enum Keys<'a> {
    Batch { k: Rows<'a, f32>, v: Rows<'a, f32> },
    Blocks { k: Rows<'a, f32>, v: Rows<'a, f32>, table: Rows<'a, u32> },
}

/// What every task reads.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    isa: Isa,
    heads: Heads,
    q: Rows<'a, f32>,
    keys: Keys<'a>,
}

pub fn attend(cx: &mut Cx, c: &Attend) {
    let keys = Keys::Batch { k: cx.memory.rows(&c.k), v: cx.memory.rows(&c.v) };
    let x = Inputs { isa: cx.isa, heads: c.heads, q: cx.memory.rows(&c.q), keys };
    let segments = Segments(cx.memory.rows(&c.segments));
    let lse = Some(cx.memory.rows_mut(&c.lse));
    run(cx, x, segments, cx.memory.rows_mut(&c.out), lse);
}

pub fn attend_blocks(cx: &mut Cx, c: &AttendBlocks) {
    let (k, v, table) = (cx.memory.rows(&c.k_blocks), cx.memory.rows(&c.v_blocks), cx.memory.rows(&c.table));
    let keys = Keys::Blocks { k, v, table };
    let x = Inputs { isa: cx.isa, heads: c.heads, q: cx.memory.rows(&c.q), keys };
    let segments = Segments(cx.memory.rows(&c.segments));
    run(cx, x, segments, cx.memory.rows_mut(&c.out), None);
}

fn run(cx: &mut Cx, x: Inputs, segments: Segments, out: RowsMut<f32>, lse: Option<RowsMut<f32>>) {
    let (heads, in_blocks) = (x.heads, matches!(x.keys, Keys::Blocks { .. }));
    let shared = heads_together(heads, segments, cx.pool.threads());
    let size = Queries::of_tile(shared);
    let sets = heads.query / shared;
    let tasks = segments.tiles(size) * sets;
    // One token over few keys is too little to share: then one task takes all heads.
    let keys_seen: usize = segments.iter().map(|s| s.len * (s.first_position + s.len)).sum();
    let each = if keys_seen * heads.width * heads.query < 1 << 16 { sets } else { 1 };
    cx.pool.run(tasks / each, &|task, scratch| {
        for task in task * each..(task + 1) * each {
            let (segment, first) = segments.tile(task / sets, size);
            let t = Queries {
                row: segment.first_row + first,
                // Positions of keys in a batch begin at the segment's own first row.
                position: first + if in_blocks { segment.first_position } else { 0 },
                n: size.min(segment.len - first),
                head: task % sets * shared,
                heads: shared,
            };
            let state = query_tile(x, segment, t, scratch);
            // SAFETY: a tile of queries and a set of heads have one task.
            unsafe { state.write(t, heads, out, lse) };
        }
    });
}

/// Query heads that a task takes together: those of a kv head, or one where that makes too few tasks.
fn heads_together(heads: Heads, segments: Segments, threads: usize) -> usize {
    let group = heads.query / heads.kv;
    let tasks = segments.tiles(Queries::of_tile(group)) * heads.kv;
    if tasks < threads + threads / 2 || group > tile::ROWS { 1 } else { group }
}

/// What a tile of queries has gathered, a row each.
struct State<'a> {
    max: &'a mut [f32],
    /// Of the exponentials.
    sum: &'a mut [f32],
    /// What a new maximum makes of sums before it.
    rescale: &'a mut [f32],
    /// [rows, padded(width)].
    out: &'a mut [f32],
}

impl State<'_> {
    /// # Safety
    /// Nothing else reads or writes these rows and columns meanwhile.
    unsafe fn write(&self, t: Queries, heads: Heads, out: RowsMut<f32>, lse: Option<RowsMut<f32>>) {
        // SAFETY: the caller's promise.
        let mut out = unsafe { out.part(t.batch_rows(), t.cols(heads)) };
        let mut rows = self.out.chunks_exact(padded(heads.width)).zip(&*self.sum);
        for i in 0..t.n {
            for (out, (row, sum)) in out.row(i).chunks_exact_mut(heads.width).zip(&mut rows) {
                out.iter_mut().zip(row).for_each(|(o, s)| *o = s / sum);
            }
        }
        let Some(lse) = lse else { return };
        // SAFETY: as above.
        let mut lse = unsafe { lse.part(t.batch_rows(), t.head..t.head + t.heads) };
        let mut rows = self.max.iter().zip(&*self.sum);
        for i in 0..t.n {
            for (lse, (max, sum)) in lse.row(i).iter_mut().zip(&mut rows) {
                *lse = max + ln(f64::from(*sum)) as f32;
            }
        }
    }
}

fn query_tile<'s>(x: Inputs, segment: Segment, t: Queries, scratch: &'s mut Scratch) -> State<'s> {
    let (heads, n) = (x.heads, t.rows());
    let wide = padded(heads.width);
    let mut rest = scratch.floats(n * (2 * wide + KEYS + 3) + 2 * KEYS * wide);
    let mut take = |n: usize| rest.split_off_mut(..n).expect("the sizes add up");
    let (q, scores) = (take(n * wide), take(n * KEYS).as_chunks_mut::<KEYS>().0);
    let (k_space, v_space) = (take(KEYS * wide), take(KEYS * wide));
    let mut s = State { out: take(n * wide), max: take(n), sum: take(n), rescale: take(n) };
    tile::load_queries(x.isa, x.q, t, heads, heads.scale, q);
    s.max.fill(f32::NEG_INFINITY);
    s.sum.fill(0.0);
    s.out.fill(0.0);
    for key in (0..t.end()).step_by(KEYS) {
        let (at, mask) = (KeyTile::new(heads, segment, t, key), t.mask(key));
        tile::scores(x.isa, n, heads.width, q, at.keys(x, k_space), scores, mask);
        absorb(x.isa, scores, mask, &mut s);
        tile::weigh(x.isa, n, scores, at.values(x, v_space), wide, s.out, mask, Store::Accumulate);
    }
    s
}

isa_fn! {
    /// Turns the visible scores into exponentials (the others into 0) and rescales what was gathered before.
    ///
    /// One thing at a time for all rows: within a row each of them waits for the one before.
    fn absorb(scores: &mut [[f32; KEYS]], mask: Mask, s: &mut State) {
        let wide = s.out.len() / scores.len();
        for (r, row) in scores.iter_mut().enumerate() {
            row[mask.keys(r)..].fill(f32::NEG_INFINITY);
            s.rescale[r] = larger(s.max[r], fold(seen(row, mask, r), f32::NEG_INFINITY, larger));
        }
        for (rescale, max) in s.rescale.iter_mut().zip(&mut *s.max) {
            let new_max = *rescale;
            *rescale = exp(*max - new_max);
            *max = new_max;
        }
        for (r, row) in scores.iter_mut().enumerate() {
            let (max, rescale) = (s.max[r], s.rescale[r]);
            for lanes in seen(row, mask, r).iter_mut() {
                for x in lanes {
                    *x = exp(*x - max);
                }
            }
            s.sum[r] = s.sum[r].mul_add(rescale, fold(seen(row, mask, r), 0.0, |a, b| a + b));
            row[padded(mask.keys(r))..].fill(0.0);
        }
        for (out, rescale) in s.out.chunks_exact_mut(wide).zip(&*s.rescale) {
            if *rescale != 1.0 {
                out.iter_mut().for_each(|o| *o *= rescale);
            }
        }
    }
}

/// `f32::max` would have to look for numbers that are none.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The vectors of row r that hold keys it sees.
#[inline(always)]
fn seen(row: &mut [f32; KEYS], mask: Mask, r: usize) -> &mut [[f32; LANES]] {
    &mut row.as_chunks_mut().0[..mask.keys(r).div_ceil(LANES)]
}

/// All elements joined by `f`: lane by lane, then the lanes in pairs.
#[inline(always)]
fn fold(row: &[[f32; LANES]], start: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut all = [start; LANES];
    for lanes in row {
        for l in 0..LANES {
            all[l] = f(all[l], lanes[l]);
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for l in 0..width {
            all[l] = f(all[l], all[l + width]);
        }
    }
    all[0]
}

/// Which keys of which kv head a tile holds.
#[derive(Clone, Copy)]
struct KeyTile {
    segment: Segment,
    heads: Heads,
    kv_head: usize,
    /// Position of the first key.
    key: usize,
    /// Keys that exist.
    n: usize,
}

impl KeyTile {
    fn new(heads: Heads, segment: Segment, t: Queries, key: usize) -> KeyTile {
        let kv_head = t.head / (heads.query / heads.kv);
        KeyTile { segment, heads, kv_head, key, n: KEYS.min(t.end() - key) }
    }

    /// The number of the block and head in the tables of blocks.
    fn block(&self, table: Rows<u32>) -> usize {
        table.row(self.segment.slot)[self.key / KEYS] as usize * self.heads.kv + self.kv_head
    }

    /// The keys as [width, KEYS]: a KV block as it is, or the rows of the batch transposed into `space`.
    fn keys<'a>(&self, x: Inputs<'a>, space: &'a mut [f32]) -> &'a [f32] {
        let width = self.heads.width;
        match x.keys {
            Keys::Batch { k, .. } => {
                let first = self.segment.first_row + self.key;
                tile::load_transposed(k, first, self.n, self.kv_head * width, width, space);
                space
            }
            Keys::Blocks { k, table, .. } => k.dense(self.block(table) * width, width),
        }
    }

    /// The values as [n, padded(width)]: a KV block as it is where its rows are whole vectors, or copied.
    fn values<'a>(&self, x: Inputs<'a>, space: &'a mut [f32]) -> &'a [f32] {
        let width = self.heads.width;
        match x.keys {
            Keys::Batch { v, .. } => {
                let first = self.segment.first_row + self.key;
                tile::load(x.isa, v, first, self.n, self.kv_head * width, width, 1.0, space);
            }
            Keys::Blocks { v, table, .. } => {
                let first = self.block(table) * KEYS;
                if width == padded(width) {
                    return v.dense(first, self.n);
                }
                tile::load(x.isa, v, first, self.n, 0, width, 1.0, space);
            }
        }
        space
    }
}
