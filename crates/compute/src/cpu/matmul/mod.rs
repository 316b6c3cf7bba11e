//! Matrix products: c (+)= scale * a b'.
//!
//! [`pack`] copies operands into panels, [`format`] says what their words are, [`micro`] multiplies a panel of a with
//! one of b; [`dot`] serves decoding. K is cut at places that follow from its length, and a worker computes its own
//! rectangle of c serially in k, so an element's bits depend neither on the number of workers nor on its neighbours.

mod dot;
mod format;
mod micro;
mod pack;

use std::ops::Range;

use crate::call::{Along, MatMul, Product, Store};
use crate::cpu::Cx;
use crate::cpu::fma::{Rectangle, Side};
use crate::cpu::memory::RowsMut;
use crate::cpu::pool::Scratch;
use crate::isa::Isa;
use crate::quant::Quant;
use crate::view::View;
use format::Format;
use micro::{Kernel, Panels};
use pack::Operand;

/// Words of k in a packed block at most; changing it changes bits.
const KC: usize = 384;
/// Panels of a packed block of a: with KC words it stays in the L2 cache beside b's.
const A_PANELS: usize = 16;
/// Columns of a packed block of b.
const NC: usize = 384;
/// With so many rows of a, packing a column costs as much as multiplying with it.
const FEW_ROWS: usize = 32;
/// Elements of a block of the types that are most in use.
const BLOCK: usize = 32;

pub fn matmul(cx: &mut Cx, call: &MatMul) {
    let (a, b) = (operand(cx, &call.a, call.a_along), operand(cx, &call.b, call.b_along));
    let c = cx.memory.rows_mut::<f32>(&call.c);
    assert_eq!((a.outer, b.outer, a.k), (c.len(), c.cols(), b.k), "shapes of a product");
    match call.product {
        Product::Dot => dot::dot(cx, call, &b, c),
        Product::Packed => match cx.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => packed::<micro::Avx2>(cx, call, a, b, c),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 if b.outer <= micro::Avx512Thin::NR && a.along == Along::K => {
                packed::<micro::Avx512Thin>(cx, call, a, b, c);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => packed::<micro::Avx512>(cx, call, a, b, c),
            _ => packed::<micro::Plain>(cx, call, a, b, c),
        },
        Product::Int16 => match cx.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => packed::<micro::Avx512Integers>(cx, call, a, b, c),
            _ => packed::<micro::PlainIntegers>(cx, call, a, b, c),
        },
        Product::Bf16 => match cx.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => packed::<micro::Avx2Rounded>(cx, call, a, b, c),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => packed::<micro::Avx512Rounded>(cx, call, a, b, c),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => packed::<micro::Avx512Bf16>(cx, call, a, b, c),
            _ => packed::<micro::PlainRounded>(cx, call, a, b, c),
        },
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

/// What the tasks of a product share.
#[derive(Clone, Copy)]
struct Job<'a> {
    isa: Isa,
    a: Operand<'a>,
    b: Operand<'a>,
    c: Rectangle,
    scale: f32,
    store: Store,
}

// SAFETY: tasks write disjoint parts of the rectangle.
unsafe impl Sync for Job<'_> {}

fn packed<K: Kernel>(cx: &mut Cx, call: &MatMul, a: Operand, b: Operand, c: RowsMut<f32>) {
    let (m, n) = (c.len(), c.cols());
    // SAFETY: the call owns c until it ends.
    let (p, stride) = unsafe { c.part(0..m, 0..n) }.raw();
    let (isa, scale, store) = (cx.isa, call.scale, call.store);
    // A few columns are better rows: b is copied once, and the few rows of a are used again for each of its panels.
    let job = if n <= K::NR && n < m && a.along == Along::Outer {
        Job { isa, a: b, b: a, c: Rectangle { p, row: 1, col: stride, m: n, n: m }, scale, store }
    } else {
        Job { isa, a, b, c: Rectangle { p, row: stride, col: 1, m, n }, scale, store }
    };
    let (by_columns, slices) = slices::<K>(&job, cx.pool.threads());
    cx.pool.run(slices, &|task, scratch| {
        let job = &job;
        let (rows, cols) = if by_columns {
            (0..job.c.m, slice(job.c.n, cut::<K>(), task, slices))
        } else {
            (slice(job.c.m, K::MR, task, slices), 0..job.c.n)
        };
        if !rows.is_empty() && !cols.is_empty() {
            rectangle::<K>(job, rows, cols, scratch);
        }
    });
}

/// Into how many slices a product is cut, by columns or by rows: a few for each worker where there is much to do, so
/// that a late worker can be helped out; one in all for little work. By columns no part of b, which may have to be
/// decoded, is packed twice.
fn slices<K: Kernel>(job: &Job, threads: usize) -> (bool, usize) {
    let (m_panels, n_panels) = (job.c.m.div_ceil(K::MR), job.c.n.div_ceil(cut::<K>()));
    let by_columns = n_panels >= 3 * threads || n_panels >= m_panels;
    let (panels, many) = if by_columns { (n_panels, 8) } else { (m_panels, 24) };
    let each = (panels / (many * threads)).clamp(1, 4);
    let worth = job.c.m * job.c.n * job.a.k >= 1 << 16;
    let count = if worth && threads > 1 { each * threads } else { 1 };
    (by_columns, count.min(panels))
}

/// Columns are cut at multiples of it: whole panels, and whole blocks where they lie along a stored row.
const fn cut<K: Kernel>() -> usize {
    let mut columns = K::NR;
    while !columns.is_multiple_of(BLOCK) {
        columns += K::NR;
    }
    columns
}

/// Slice `i` of `count` of `len` elements, cut at whole panels.
fn slice(len: usize, panel: usize, i: usize, count: usize) -> Range<usize> {
    let panels = len.div_ceil(panel);
    (panels * i / count * panel).min(len)..(panels * (i + 1) / count * panel).min(len)
}

/// How much of k a packed block takes: equal parts, since each of them reads and writes c once, of whole blocks.
fn depth(k: usize, most: usize) -> usize {
    let parts = k.div_ceil(most).max(1);
    k.div_ceil(parts).next_multiple_of(BLOCK).clamp(BLOCK, most)
}

fn rectangle<K: Kernel>(job: &Job, rows: Range<usize>, cols: Range<usize>, scratch: &mut Scratch) {
    let mc = A_PANELS * K::MR;
    let depth = depth(job.a.k, K::Format::depth(KC));
    let (a_words, b_words) = (pack::words(mc, K::MR), pack::words(NC, K::NR));
    let temp = pack::temp::<K::Format>(mc, K::MR).max(pack::temp::<K::Format>(NC, K::NR));
    let (a_pack, rest) = scratch.floats(a_words + b_words + temp).split_at_mut(a_words);
    let (b_pack, temp) = rest.split_at_mut(b_words);
    for jc in cols.clone().step_by(NC) {
        let nc = jc..cols.end.min(jc + NC);
        for pc in (0..job.a.k).step_by(depth) {
            let kc = pc..job.a.k.min(pc + depth);
            let b = direct_columns::<K>(&job.b, nc.clone(), kc.clone(), rows.len()).unwrap_or_else(|| {
                pack::pack::<K::Format>(job.isa, &job.b, nc.clone(), kc.clone(), K::NR, b_pack, temp)
            });
            // The first block of k decides about the old content, later ones add.
            let store = if pc == 0 { job.store } else { Store::Accumulate };
            for ic in rows.clone().step_by(mc) {
                let end = rows.end.min(ic + mc);
                // Whole panels of plain rows are read where they are.
                let whole = direct::<K>(&job.a, ic..end, kc.clone());
                let mut at = ic;
                if let Some((a, rows)) = whole {
                    at = rows.end;
                    block::<K>(job, rows, nc.clone(), kc.len(), a, b, store);
                }
                if at < end {
                    let a =
                        pack::pack::<K::Format>(job.isa, &job.a, at..end, kc.clone(), K::MR, a_pack, temp);
                    block::<K>(job, at..end, nc.clone(), kc.len(), a, b, store);
                }
            }
        }
    }
}

/// The whole panels among `rows` of an operand that need not be packed.
fn direct<K: Kernel>(op: &Operand, rows: Range<usize>, k: Range<usize>) -> Option<(Panels, Range<usize>)> {
    let (floats, stride) = op.floats().filter(|_| K::Format::PLAIN && op.along == Along::K)?;
    let n = rows.len() / K::MR * K::MR;
    let first = floats[rows.start * stride..].get(k.start..)?;
    let panels = Panels { first: Side { p: first.as_ptr(), outer: stride, k: 1 }, panel: K::MR * stride };
    (n > 0).then_some((panels, rows.start..rows.start + n))
}

/// Whole panels of columns that need not be packed: where few rows of a use them, they are read where they are.
fn direct_columns<K: Kernel>(
    op: &Operand,
    cols: Range<usize>,
    k: Range<usize>,
    rows: usize,
) -> Option<Panels> {
    let worth = K::Format::PLAIN && rows <= FEW_ROWS && cols.len().is_multiple_of(K::NR);
    let (floats, stride) = op.floats().filter(|_| worth && op.along == Along::Outer)?;
    let first = floats[k.start * stride..].get(cols.start..)?;
    Some(Panels { first: Side { p: first.as_ptr(), outer: 1, k: stride }, panel: K::NR })
}

fn block<K: Kernel>(
    job: &Job,
    rows: Range<usize>,
    cols: Range<usize>,
    k: usize,
    a: Panels,
    b: Panels,
    store: Store,
) {
    let words = K::Format::words(k);
    // SAFETY: the backend checks that the machine has the path's instructions; the panels hold the rows and columns,
    // and slices are disjoint, so this task alone touches the rectangle.
    unsafe {
        let c = job.c.tile(rows.start, cols.start, rows.len(), cols.len());
        K::block(words, a, b, c, job.scale, store);
    }
}
