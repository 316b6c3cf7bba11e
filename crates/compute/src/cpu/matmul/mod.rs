//! Matrix products: c (+)= scale * a b'.
//!
//! `pack` copies operands into panels, decoding block types on the way, so a frozen weight keeps its file's bytes;
//! `micro` multiplies one panel of a with one of b; `dot` serves decoding. K is cut at fixed multiples of [`KC`] and
//! a worker computes its own rectangle of c serially in k, so an element's bits depend neither on the number of
//! workers nor on its neighbours.

mod dot;
mod micro;
mod pack;

use std::ops::Range;

use crate::call::{Along, MatMul, Product, Store};
use crate::cpu::Cx;
use crate::cpu::memory::RowsMut;
use crate::cpu::pool::Scratch;
use crate::isa::Isa;
use crate::quant::Quant;
use crate::view::View;
use micro::{MR, NR};
use pack::Operand;

/// K of a packed block; changing it changes bits.
const KC: usize = 256;
/// Rows of a packed block of a: with KC columns it stays in the L2 cache beside b's.
const MC: usize = 16 * MR;
/// Columns of a packed block of b.
const NC: usize = 24 * NR;

pub fn matmul(cx: &mut Cx, call: &MatMul) {
    let (a, b) = (operand(cx, &call.a, call.a_along), operand(cx, &call.b, call.b_along));
    let c = cx.memory.rows_mut::<f32>(&call.c);
    assert_eq!((a.outer, b.outer, a.k), (c.len(), c.cols(), b.k), "shapes of a product");
    match call.product {
        Product::Packed => packed(cx, call, &a, &b, c),
        Product::Dot => dot::dot(cx, call, &b, c),
    }
}

fn operand<'a>(cx: &Cx<'a>, v: &View, along: Along) -> Operand<'a> {
    let quant = Quant::of(v.dtype).expect("the model checks tensor types when it is loaded");
    let (outer, k) = match along {
        Along::K => (v.rows, v.cols),
        Along::Outer => (v.cols, v.rows),
    };
    Operand { bytes: cx.memory.bytes(v), stride: v.bytes_of(v.stride) as usize, quant, along, outer, k }
}

fn packed(cx: &mut Cx, call: &MatMul, a: &Operand, b: &Operand, c: RowsMut<f32>) {
    let (m, n, isa) = (c.len(), c.cols(), cx.isa);
    let (by_columns, slices) = slices(m, n, a.k, cx.pool.threads());
    cx.pool.run(slices, &|task, scratch| {
        let (rows, cols) =
            if by_columns { (0..m, slice(n, NR, task, slices)) } else { (slice(m, MR, task, slices), 0..n) };
        if !rows.is_empty() && !cols.is_empty() {
            rectangle(isa, call, a, b, c, rows, cols, scratch);
        }
    });
}

/// Cuts the side with more panels, into as many slices for each worker: a few where there is much to do, so that a
/// late worker can be helped out; one slice in all for little work.
fn slices(m: usize, n: usize, k: usize, threads: usize) -> (bool, usize) {
    let (m_panels, n_panels) = (m.div_ceil(MR), n.div_ceil(NR));
    let by_columns = n_panels >= m_panels;
    let panels = m_panels.max(n_panels);
    let worth = m * n * k >= 1 << 16;
    let each = (panels / (24 * threads)).clamp(1, 4);
    let count = if worth && threads > 1 { each * threads } else { 1 };
    (by_columns, count.min(panels))
}

/// Slice `i` of `count` of `len` elements, cut at whole panels.
fn slice(len: usize, panel: usize, i: usize, count: usize) -> Range<usize> {
    let panels = len.div_ceil(panel);
    (panels * i / count * panel).min(len)..(panels * (i + 1) / count * panel).min(len)
}

#[allow(clippy::too_many_arguments)]
fn rectangle(
    isa: Isa,
    call: &MatMul,
    a: &Operand,
    b: &Operand,
    c: RowsMut<f32>,
    rows: Range<usize>,
    cols: Range<usize>,
    scratch: &mut Scratch,
) {
    let (a_pack, rest) = scratch.floats(MC * KC + NC * KC + pack::TEMP).split_at_mut(MC * KC);
    let (b_pack, temp) = rest.split_at_mut(NC * KC);
    for jc in cols.clone().step_by(NC) {
        let nc = NC.min(cols.end - jc);
        for pc in (0..a.k).step_by(KC) {
            let kc = KC.min(a.k - pc);
            pack::pack::<NR>(isa, b, jc..jc + nc, pc..pc + kc, b_pack, temp);
            // The first block of k decides about the old content, later ones add.
            let store = if pc == 0 { call.store } else { Store::Accumulate };
            for ic in rows.clone().step_by(MC) {
                let mc = MC.min(rows.end - ic);
                pack::pack::<MR>(isa, a, ic..ic + mc, pc..pc + kc, a_pack, temp);
                // SAFETY: slices are disjoint, so this task alone touches the rectangle.
                let mut tile = unsafe { c.part(ic..ic + mc, jc..jc + nc) };
                let (p, stride) = tile.raw();
                micro::block(
                    isa,
                    kc,
                    a_pack,
                    b_pack,
                    micro::Tile { p, stride, m: mc, n: nc },
                    call.scale,
                    store,
                );
            }
        }
    }
}
