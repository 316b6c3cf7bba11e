//! Rows of the embedding table.

use std::rc::Rc;

use planish_compute::View;
use planish_compute::call::{Embed, EmbedBack, Product, Store};

use super::linear::{outer, times, times_transposed};
use super::{Adapter, Example};
use crate::tape::{Param, Tape, Var};

/// `(table + sum of scale B A)[ids]`: ids [n, 1], table [vocabulary, width], B [vocabulary, rank], A [rank, width], result
/// [n, width]. Adapters of tables have neither dropout nor magnitude.
pub fn embed(t: &mut Tape, ids: View, table: &Param, adapters: &[Adapter]) -> Var {
    let out = t.temp(ids.rows, table.view.cols);
    t.call(Embed { ids, table: table.view, out });
    let mut lows = Vec::with_capacity(adapters.len());
    for a in adapters {
        let low = t.temp(ids.rows, a.a.view.rows);
        t.call(Embed { ids, table: a.b.view, out: low });
        times_transposed(t, PRODUCT, low, a.a.view, out, a.scale, Store::Accumulate);
        lows.push((*a, low));
    }
    let grad = table.grad;
    let (trains, lows) = (adapters.iter().any(Adapter::trains), Rc::new(lows));
    // dtable[ids[i]] += dy[i], dA = scale B[ids]' dy, dB[ids[i]] += scale dy[i] A'
    t.push(out, grad.is_some() || trains, move |t, dy| {
        if let Some(dtable) = grad {
            t.call(EmbedBack { ids, dy, dtable });
        }
        for (a, low) in lows.iter() {
            if let Some(da) = a.a.grad {
                outer(t, PRODUCT, *low, dy, da, a.scale);
            }
            if let Some(dtable) = a.b.grad {
                let dlow = t.temp(dy.rows, low.cols);
                times(t, PRODUCT, dy, a.a.view, dlow, a.scale, Store::Replace);
                t.call(EmbedBack { ids, dy: dlow, dtable });
            }
        }
    })
}

/// The operands are thin and in single precision, whatever the arithmetic of the pass.
const PRODUCT: Product = Product::Packed;

/// One id twice, so that its row's gradient is a sum; one adapter.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let table = e.param(6, 70);
    let ids = e.words(4, 1, &[2, 0, 5, 2]);
    let (a, b) = (e.param(3, 70), e.param(6, 3));
    embed(t, ids, &table, &[Adapter { a, b, scale: 0.5, dropout: None, magnitude: None }])
}
