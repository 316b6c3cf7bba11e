//! Copies a block of an operand into panels of `W` outer indices: dst[panel][k][W], zeros where the operand ends.

use std::ops::Range;

use super::{KC, NC};
use crate::call::Along;
use crate::isa::{Isa, isa_fn};
use crate::quant::Quant;

/// Floats that packing needs beside its output.
pub const TEMP: usize = if 16 * KC > NC { 16 * KC } else { NC };

/// One side of a product, still in its own format.
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

/// Packs `outer` x `k`; `temp` has [`TEMP`] floats.
pub fn pack<const W: usize>(
    isa: Isa,
    op: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    dst: &mut [f32],
    temp: &mut [f32],
) {
    match op.along {
        Along::K => rows_along_k::<W>(isa, op, outer, k, dst, temp),
        Along::Outer => rows_along_outer::<W>(isa, op, outer, k, dst, temp),
    }
}

/// A stored row is one outer index: decode W rows, then transpose them into the panel.
fn rows_along_k<const W: usize>(
    isa: Isa,
    op: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    dst: &mut [f32],
    temp: &mut [f32],
) {
    let kc = k.len();
    for (panel, first) in dst.chunks_exact_mut(W * kc).zip(outer.clone().step_by(W)) {
        for (i, row) in temp.chunks_exact_mut(kc).take(W).enumerate() {
            if first + i < outer.end {
                op.quant.decode_range(isa, &op.bytes[(first + i) * op.stride..], k.start, row);
            } else {
                row.fill(0.0);
            }
        }
        match W {
            16 => transpose_16(isa, temp, kc, panel),
            _ => transpose::<W>(temp, kc, panel),
        }
    }
}

fn transpose<const W: usize>(rows: &[f32], kc: usize, panel: &mut [f32]) {
    for (k, lanes) in panel.as_chunks_mut::<W>().0.iter_mut().enumerate() {
        for i in 0..W {
            lanes[i] = rows[i * kc + k];
        }
    }
}

isa_fn! {
    /// As `transpose`, eight k at a time, so that loads and stores are whole lines.
    fn transpose_16(rows: &[f32], kc: usize, panel: &mut [f32]) {
        let whole = kc / 8 * 8;
        for k in (0..whole).step_by(8) {
            let mut block = [[0f32; 16]; 8];
            for i in 0..16 {
                let row: &[f32] = &rows[i * kc + k..][..8];
                for j in 0..8 {
                    block[j][i] = row[j];
                }
            }
            panel[k * 16..][..128].copy_from_slice(block.as_flattened());
        }
        for k in whole..kc {
            for i in 0..16 {
                panel[k * 16 + i] = rows[i * kc + k];
            }
        }
    }
}

/// A stored row is one k: decode the whole range of outer indices, then deal it out to the panels.
fn rows_along_outer<const W: usize>(
    isa: Isa,
    op: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    dst: &mut [f32],
    temp: &mut [f32],
) {
    let (kc, n) = (k.len(), outer.len());
    let row = &mut temp[..n];
    for (j, k) in k.enumerate() {
        op.quant.decode_range(isa, &op.bytes[k * op.stride..], outer.start, row);
        let (whole, rest) = row.as_chunks::<W>();
        for (p, lanes) in whole.iter().enumerate() {
            dst[p * W * kc + j * W..][..W].copy_from_slice(lanes);
        }
        if !rest.is_empty() {
            let lanes = &mut dst[whole.len() * W * kc + j * W..][..W];
            lanes[..rest.len()].copy_from_slice(rest);
            lanes[rest.len()..].fill(0.0);
        }
    }
}
