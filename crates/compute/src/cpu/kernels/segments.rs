//! How attention cuts a ragged batch: segments, tiles of queries and keys in them, and who sees whom.

use std::ops::Range;

use super::tile::{KEYS, ROWS};
use crate::call::Heads;
use crate::cpu::memory::Rows;

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

/// Some queries of a segment, each with the same `heads` query heads that share a kv head. Row r of its matrices is
/// query r / heads and head r % heads of these: what a query's heads have in common is loaded once, and a later row
/// never sees less than an earlier one.
#[derive(Clone, Copy)]
pub struct Queries {
    /// Row of the batch that holds the first query.
    pub row: usize,
    /// Its position, counted like those of the keys.
    pub position: usize,
    /// Number of queries.
    pub n: usize,
    /// The first head.
    pub head: usize,
    /// Number of heads.
    pub heads: usize,
}

impl Queries {
    /// Queries that a tile of `heads` heads has.
    pub fn of_tile(heads: usize) -> usize {
        (ROWS / heads).max(1)
    }

    /// Rows of the tile's matrices.
    pub fn rows(&self) -> usize {
        self.n * self.heads
    }

    /// The rows of the batch.
    pub fn batch_rows(&self) -> Range<usize> {
        self.row..self.row + self.n
    }

    /// The columns of the heads in q and its like.
    pub fn cols(&self, heads: Heads) -> Range<usize> {
        self.head * heads.width..(self.head + self.heads) * heads.width
    }

    /// One past the last position that is seen.
    pub fn end(&self) -> usize {
        self.position + self.n
    }

    /// What the tile sees of the keys from position `key` on.
    pub fn mask(&self, key: usize) -> Mask {
        Mask { position: self.position, heads: self.heads, key }
    }
}

/// Which keys of a tile of keys the rows of a tile of queries see.
#[derive(Clone, Copy)]
pub struct Mask {
    position: usize,
    heads: usize,
    key: usize,
}

impl Mask {
    /// Row r sees the keys 0 .. keys(r) of the tile.
    pub fn keys(&self, r: usize) -> usize {
        (self.position + r / self.heads + 1).saturating_sub(self.key).min(KEYS)
    }

    /// The first row that sees key j of the tile.
    pub fn first_row(&self, j: usize) -> usize {
        (self.key + j).saturating_sub(self.position) * self.heads
    }
}
