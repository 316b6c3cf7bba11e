//! Causal attention with a streaming softmax: a task takes a tile of queries of one head through the tiles of keys,
//! keeping for each query the largest score, the sum of exponentials and the weighted sum of values. No matrix of
//! all scores ever exists.

use planish_base::math::{exp, ln};

use super::lanes;
use super::tile::{self, KEYS, Left, QUERIES, padded};
use crate::call::{Attend, AttendBlocks, Heads};
use crate::cpu::Cx;
use crate::cpu::memory::{Rows, RowsMut};
use crate::cpu::pool::Scratch;
use crate::isa::{Isa, isa_fn};

/// A row of the segment table.
#[derive(Clone, Copy)]
pub struct Segment {
    pub first_row: usize,
    pub len: usize,
    pub first_position: usize,
    pub slot: usize,
}

/// The segments of a batch, and the tiles that `size` rows of each make.
#[derive(Clone, Copy)]
pub struct Segments<'a>(pub Rows<'a, u32>);

impl Segments<'_> {
    pub fn get(&self, i: usize) -> Segment {
        let s = self.0.row(i);
        Segment {
            first_row: s[0] as usize,
            len: s[1] as usize,
            first_position: s[2] as usize,
            slot: s[3] as usize,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        (0..self.0.len()).map(|i| self.get(i))
    }

    /// Tiles of all segments.
    pub fn tiles(&self, size: usize) -> usize {
        self.iter().map(|s| s.len.div_ceil(size)).sum()
    }

    /// The segment of tile `i`, and the tile's first row within it.
    pub fn tile(&self, mut i: usize, size: usize) -> (Segment, usize) {
        for s in self.iter() {
            let n = s.len.div_ceil(size);
            if i < n {
                return (s, i * size);
            }
            i -= n;
        }
        unreachable!("tile {i} past the last segment")
    }
}

/// Where keys and values come from: the rows of the batch, or KV blocks.
#[derive(Clone, Copy)]
enum Keys<'a> {
    Batch { k: Rows<'a, f32>, v: Rows<'a, f32> },
    Blocks { k: Rows<'a, f32>, v: Rows<'a, f32>, table: Rows<'a, u32> },
}

pub fn attend(cx: &mut Cx, c: &Attend) {
    let keys = Keys::Batch { k: cx.memory.rows(&c.k), v: cx.memory.rows(&c.v) };
    let segments = Segments(cx.memory.rows(&c.segments));
    let lse = Some(cx.memory.rows_mut(&c.lse));
    run(cx, c.heads, cx.memory.rows(&c.q), keys, segments, cx.memory.rows_mut(&c.out), lse);
}

pub fn attend_blocks(cx: &mut Cx, c: &AttendBlocks) {
    let (k, v, table) = (cx.memory.rows(&c.k_blocks), cx.memory.rows(&c.v_blocks), cx.memory.rows(&c.table));
    let segments = Segments(cx.memory.rows(&c.segments));
    run(
        cx,
        c.heads,
        cx.memory.rows(&c.q),
        Keys::Blocks { k, v, table },
        segments,
        cx.memory.rows_mut(&c.out),
        None,
    );
}

fn run(
    cx: &mut Cx,
    heads: Heads,
    q: Rows<f32>,
    keys: Keys,
    segments: Segments,
    out: RowsMut<f32>,
    lse: Option<RowsMut<f32>>,
) {
    let isa = cx.isa;
    let tiles = segments.tiles(QUERIES);
    // One token over few keys is too little to share: then one task takes all heads.
    let keys_seen: usize = segments.iter().map(|s| s.len * (s.first_position + s.len)).sum();
    let group = if keys_seen * heads.width * heads.query < 1 << 16 { heads.query } else { 1 };
    cx.pool.run(tiles * heads.query / group, &|task, scratch| {
        let (segment, first) = segments.tile(task * group / heads.query, QUERIES);
        for head in (0..group).map(|h| (task * group + h) % heads.query) {
            let rows = segment.first_row + first..segment.first_row + (first + QUERIES).min(segment.len);
            let cols = head * heads.width..(head + 1) * heads.width;
            // SAFETY: a tile of a head has one task.
            let mut out = unsafe { out.part(rows.clone(), cols) };
            // SAFETY: as above.
            let mut lse = lse.map(|l| unsafe { l.part(rows.clone(), head..head + 1) });
            let state = query_tile(isa, heads, q, keys, segment, first, rows.len(), head, scratch);
            for i in 0..rows.len() {
                let sum = state.sum[i];
                for (o, s) in out.row(i).iter_mut().zip(&state.out[i * padded(heads.width)..]) {
                    *o = s / sum;
                }
                if let Some(lse) = &mut lse {
                    lse.row(i)[0] = state.max[i] + ln(f64::from(sum)) as f32;
                }
            }
        }
    });
}

/// What a tile of queries has gathered.
struct State<'a> {
    max: [f32; QUERIES],
    sum: [f32; QUERIES],
    out: &'a [f32],
}

#[allow(clippy::too_many_arguments)]
fn query_tile<'s>(
    isa: Isa,
    heads: Heads,
    q: Rows<f32>,
    keys: Keys,
    segment: Segment,
    first: usize,
    n: usize,
    head: usize,
    scratch: &'s mut Scratch,
) -> State<'s> {
    let (width, wide) = (heads.width, padded(heads.width));
    let kv_head = head / (heads.query / heads.kv);
    let buffer = scratch.floats(2 * QUERIES * wide + QUERIES * KEYS + 2 * KEYS * wide);
    let (q_tile, rest) = buffer.split_at_mut(QUERIES * wide);
    let (out, rest) = rest.split_at_mut(QUERIES * wide);
    let (scores, rest) = rest.split_at_mut(QUERIES * KEYS);
    let (k_space, v_space) = rest.split_at_mut(KEYS * wide);
    tile::load(q, segment.first_row + first, n, head * width, width, heads.scale, q_tile);
    out[..n * wide].fill(0.0);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0f32; QUERIES]);
    // Positions of keys in a batch begin at the segment's own first row.
    let base = if let Keys::Batch { .. } = keys { 0 } else { segment.first_position };
    let last = base + first + n;
    for key in (0..last).step_by(KEYS) {
        let t = Tile { segment, heads, kv_head, key, n: KEYS.min(last - key) };
        let k = key_tile(keys, t, k_space);
        // Keys beyond the last one are not looked at: in decoding half of a tile, on average.
        tile::product(
            isa,
            n,
            KEYS,
            padded(t.n),
            width,
            Left { data: q_tile, outer: wide, inner: 1 },
            k,
            scores,
            false,
        );
        for i in 0..n {
            let visible = (base + first + i + 1).saturating_sub(key).min(KEYS);
            let row = &mut scores[i * KEYS..][..KEYS];
            let out = &mut out[i * wide..][..wide];
            (max[i], sum[i]) = absorb(isa, row, visible, max[i], sum[i], out);
        }
        let v = value_tile(keys, t, v_space);
        tile::product(isa, n, wide, wide, t.n, Left { data: scores, outer: KEYS, inner: 1 }, v, out, true);
    }
    State { max, sum, out }
}

isa_fn! {
    /// Turns the visible scores into exponentials (the others into 0) and rescales what was gathered before.
    fn absorb(row: &mut [f32], visible: usize, max: f32, sum: f32, out: &mut [f32]) -> (f32, f32) {
        let (row, beyond) = row.split_at_mut(padded(visible));
        beyond.fill(0.0);
        row[visible..].fill(f32::NEG_INFINITY);
        let tile_max = lanes::max(row);
        let new_max = if tile_max > max { tile_max } else { max };
        let rescale = exp(max - new_max);
        for s in row.iter_mut() {
            *s = exp(*s - new_max);
        }
        for o in out.iter_mut() {
            *o *= rescale;
        }
        (new_max, sum.mul_add(rescale, lanes::sum(row.len(), |i| row[i])))
    }
}

/// Which keys of which head a tile holds.
#[derive(Clone, Copy)]
struct Tile {
    segment: Segment,
    heads: Heads,
    kv_head: usize,
    /// Position of the first key.
    key: usize,
    /// Keys that exist; the others are masked by the caller.
    n: usize,
}

impl Tile {
    /// The number of the block and head in the tables of blocks.
    fn block(&self, table: Rows<u32>) -> usize {
        table.row(self.segment.slot)[self.key / KEYS] as usize * self.heads.kv + self.kv_head
    }
}

/// The tile's keys as [width, KEYS]: a KV block as it is, or the rows of the batch transposed into `space`.
fn key_tile<'a>(keys: Keys<'a>, t: Tile, space: &'a mut [f32]) -> &'a [f32] {
    let width = t.heads.width;
    match keys {
        Keys::Batch { k, .. } => {
            tile::load_transposed(k, t.segment.first_row + t.key, t.n, t.kv_head * width, width, space);
            space
        }
        Keys::Blocks { k, table, .. } => k.dense(t.block(table) * width, width),
    }
}

/// The tile's values as [n, padded(width)]: a KV block as it is where its rows are whole vectors, or copied.
fn value_tile<'a>(keys: Keys<'a>, t: Tile, space: &'a mut [f32]) -> &'a [f32] {
    let width = t.heads.width;
    match keys {
        Keys::Batch { v, .. } => {
            tile::load(v, t.segment.first_row + t.key, t.n, t.kv_head * width, width, 1.0, space);
        }
        Keys::Blocks { v, table, .. } => {
            let first = t.block(table) * KEYS;
            if width == padded(width) {
                return v.dense(first, t.n);
            }
            tile::load(v, first, t.n, 0, width, 1.0, space);
        }
    }
    space
}
