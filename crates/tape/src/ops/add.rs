//! y = a + scale * b: the residual connection.

use planish_compute::call::{Add, Store, Zero};

use super::Example;
use crate::tape::{Tape, Var};

/// Adds `scale` * `b` to `a`, both [n, width].
pub fn add(t: &mut Tape, a: Var, b: Var, scale: f32) -> Var {
    let (av, bv) = (t.view(a), t.view(b));
    assert_eq!((av.rows, av.cols), (bv.rows, bv.cols), "shapes of a sum");
    let y = t.temp(av.rows, av.cols);
    t.call(Add { a: av, b: bv, y, scale });
    let (a_needs, b_needs) = (t.needs_grad(a), t.needs_grad(b));
    // da = dy, db = scale * dy
    t.push(y, a_needs || b_needs, move |t, dy| {
        if a_needs {
            t.grad_is(a, dy);
        }
        if b_needs && scale == 1.0 {
            t.grad_is(b, dy);
        } else if b_needs {
            let (db, store) = t.grad_into(b);
            if store == Store::Replace {
                t.call(Zero { x: db });
            }
            t.call(Add { a: db, b: dy, y: db, scale });
        }
    })
}

/// Both scales, and a value that is used twice, so that its gradient is the sum of two.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (a, b) = (e.param(5, 7), e.param(5, 7));
    let (a, b) = (t.leaf(&a), t.leaf(&b));
    let y = add(t, a, b, 1.0);
    let z = add(t, y, a, 0.25);
    add(t, z, y, 1.0)
}
