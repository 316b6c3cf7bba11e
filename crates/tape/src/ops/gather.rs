//! Chosen rows.

use planish_compute::View;
use planish_compute::call::{Gather, Scatter, Store};

use super::Example;
use crate::tape::{Tape, Var};

/// Rows of x [n, width] by number; `rows` [m, 1] ascending without duplicates.
pub fn gather(t: &mut Tape, x: Var, rows: View) -> Var {
    let xv = t.view(x);
    let out = t.temp(rows.rows, xv.cols);
    t.call(Gather { x: xv, rows, out });
    let needs = t.needs_grad(x);
    // dx[rows[i]] = dy[i], 0 elsewhere
    t.push(out, needs, move |t, dy| {
        let (dx, store) = t.grad_into(x);
        assert!(store == Store::Replace, "a gathered value has one use");
        t.call(Scatter { dy, rows, dx });
    })
}

pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (x, zero) = (e.param(6, 5), e.param(6, 5));
    let rows = e.words(3, 1, &[0, 2, 5]);
    let (x, zero) = (t.leaf(&x), t.leaf(&zero));
    let x = super::add(t, x, zero, 1.0);
    gather(t, x, rows)
}
