//! Copies a block of an operand into panels of `width` rows: dst[panel][k][width], zeros where the operand ends.
//!
//! Block types are decoded on the way, so a frozen weight keeps its file's bytes.

use std::ops::Range;

use super::KC;
use super::format::Format;
use super::micro::Panels;
use crate::call::Along;
use crate::cpu::fma::Side;
use crate::cpu::transpose::transpose;
use crate::isa::{Isa, isa_fn};
use crate::quant::Quant;

/// Words between panels: without them equal places of all panels would share a set of the cache.
const GAP: usize = 16;

/// One side of a product, still in its own format.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub bytes: &'a [u8],
    /// Bytes from one stored row to the next.
    pub stride: usize,
    pub quant: &'static Quant,
    pub along: Along,
    /// Rows of a, or columns of c.
    pub outer: usize,
    pub k: usize,
}

impl<'a> Operand<'a> {
    /// The values, where they are stored as f32, and their stride.
    pub fn floats(&self) -> Option<(&'a [f32], usize)> {
        let plain = self.quant.id == planish_base::TypeId::F32;
        let floats = if plain { bytemuck::try_cast_slice(self.bytes).ok() } else { None };
        floats.map(|f| (f, self.stride / 4))
    }

    /// Columns `start ..` of stored row `row`, decoded.
    fn decode(&self, isa: Isa, row: usize, start: usize, values: &mut [f32]) {
        self.quant.decode_range(isa, &self.bytes[row * self.stride..], start, values);
    }
}

/// Words that `rows` rows of a block take in panels of `width`.
pub const fn words(rows: usize, width: usize) -> usize {
    rows.div_ceil(width) * (width * KC + GAP)
}

/// Words that packing needs beside its output, for panels of `width` and blocks of up to `rows` rows.
pub fn temp<F: Format>(rows: usize, width: usize) -> usize {
    (width * KC + F::depth(KC)).max(3 * rows)
}

/// Packs rows `outer` x `k` of an operand.
pub fn pack<F: Format>(
    isa: Isa,
    op: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    width: usize,
    dst: &mut [f32],
    temp: &mut [f32],
) -> Panels {
    let words = F::words(k.len());
    let panel = width * words + GAP;
    match op.along {
        Along::K => {
            for (dst, first) in dst.chunks_mut(panel).zip(outer.clone().step_by(width)) {
                let rows = first..outer.end.min(first + width);
                rows_along_k::<F>(isa, op, rows, k.clone(), width, &mut dst[..width * words], temp);
            }
        }
        Along::Outer => rows_along_outer::<F>(isa, op, outer, k, width, panel, dst, temp),
    }
    Panels { first: Side { p: dst.as_ptr(), outer: 1, k: width }, panel }
}

/// A stored row is one row of the panel: make words of each, then transpose them.
fn rows_along_k<F: Format>(
    isa: Isa,
    op: &Operand,
    rows: Range<usize>,
    k: Range<usize>,
    width: usize,
    panel: &mut [f32],
    temp: &mut [f32],
) {
    if let (true, Some((floats, stride))) = (F::PLAIN, op.floats()) {
        let rows_from = &floats[rows.start * stride + k.start..];
        return transpose(rows_from, stride, rows.len(), k.len(), width, panel);
    }
    let words = F::words(k.len());
    let (values, temp) = temp.split_at_mut(k.len());
    for (words, row) in temp.chunks_exact_mut(words).zip(rows.clone()) {
        F::along(isa, |values| op.decode(isa, row, k.start, values), values, words);
    }
    transpose(temp, words, rows.len(), words, width, panel);
}

/// A stored row is one k: make words of the whole range of rows, then deal them out to the panels.
#[allow(clippy::too_many_arguments)]
fn rows_along_outer<F: Format>(
    isa: Isa,
    op: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    width: usize,
    panel: usize,
    dst: &mut [f32],
    temp: &mut [f32],
) {
    let n = outer.len();
    let (words, rest) = temp.split_at_mut(n);
    let (first, rest) = rest.split_at_mut(n);
    let second = &mut rest[..n];
    for (w, at) in k.clone().step_by(F::PAIR).enumerate() {
        let dst = &mut dst[w * width..];
        if let (true, Some((floats, stride))) = (F::PLAIN, op.floats()) {
            deal(isa, &floats[at * stride..][outer.clone()], width, panel, dst);
            continue;
        }
        let decode = |i: usize, values: &mut [f32]| match at + i < k.end {
            true => op.decode(isa, at + i, outer.start, values),
            false => values.fill(0.0),
        };
        F::across(isa, decode, [first, second], words);
        deal(isa, words, width, panel, dst);
    }
}

isa_fn! {
    /// dst[p * panel ..][.. width] = words[p * width ..], zeros at the end.
    fn deal(words: &[f32], width: usize, panel: usize, dst: &mut [f32]) {
        match width {
            6 => deal_by::<6>(words, panel, dst),
            8 => deal_by::<8>(words, panel, dst),
            14 => deal_by::<14>(words, panel, dst),
            16 => deal_by::<16>(words, panel, dst),
            48 => deal_by::<48>(words, panel, dst),
            _ => unreachable!("no kernel has panels of {width}"),
        }
    }
}

#[inline(always)]
fn deal_by<const W: usize>(words: &[f32], panel: usize, dst: &mut [f32]) {
    let (whole, rest) = words.as_chunks::<W>();
    for (p, words) in whole.iter().enumerate() {
        dst[p * panel..][..W].copy_from_slice(words);
    }
    if !rest.is_empty() {
        let lanes = &mut dst[whole.len() * panel..][..W];
        lanes[..rest.len()].copy_from_slice(rest);
        lanes[rest.len()..].fill(0.0);
    }
}
