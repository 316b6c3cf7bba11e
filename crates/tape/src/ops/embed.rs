//! Rows of the embedding table.

use planish_compute::View;
use planish_compute::call::{Embed, EmbedBack};

use super::Example;
use crate::tape::{Param, Tape, Var};

/// `table[ids]`: ids [n, 1], table [vocabulary, width], result [n, width].
pub fn embed(t: &mut Tape, ids: View, table: &Param) -> Var {
    let out = t.temp(ids.rows, table.view.cols);
    t.call(Embed { ids, table: table.view, out });
    let grad = table.grad;
    // dtable[ids[i]] += dy[i]
    t.push(out, grad.is_some(), move |t, dy| {
        if let Some(dtable) = grad {
            t.call(EmbedBack { ids, dy, dtable });
        }
    })
}

/// One id twice, so that its row's gradient is a sum.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let table = e.param(6, 70);
    let ids = e.words(4, 1, &[2, 0, 5, 2]);
    embed(t, ids, &table)
}
