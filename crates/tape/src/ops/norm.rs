//! Root mean square norm.

use planish_compute::call::{RmsNorm, RmsNormBack, RmsNormWeightBack};

use super::Example;
use crate::tape::{Mode, Param, Tape, Var};

/// Norm of groups of `width` columns.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// [1, width]; none means 1.
    pub weight: Option<Param>,
    /// Added to the mean square.
    pub eps: f32,
    /// Columns normalised together; divides the number of columns.
    pub width: usize,
}

/// x / rms(x) * weight for each group of columns of x [n, groups * width].
pub fn norm(t: &mut Tape, x: Var, p: &Norm) -> Var {
    let xv = t.view(x);
    assert!(xv.cols.is_multiple_of(p.width), "{} columns in groups of {}", xv.cols, p.width);
    let y = t.temp(xv.rows, xv.cols);
    let rstd = (t.mode() == Mode::Train).then(|| t.temp(xv.rows, xv.cols / p.width));
    let weight = p.weight.map(|w| w.view);
    t.call(RmsNorm { x: xv, weight, y, rstd, eps: p.eps, width: p.width });
    let (needs, width, dweight) = (t.needs_grad(x), p.width, p.weight.and_then(|w| w.grad));
    // dx = rstd (w dy - xhat mean(w dy xhat)), dw = sum dy xhat, xhat = x rstd
    t.push(y, needs || dweight.is_some(), move |t, dy| {
        let rstd = rstd.expect("a pass that trains keeps rstd");
        if let Some(dweight) = dweight {
            t.call(RmsNormWeightBack { dy, x: xv, rstd, dweight, width });
        }
        if needs {
            let (dx, store) = t.grad_into(x);
            t.call(RmsNormBack { dy, x: xv, weight, rstd, dx, width, store });
        }
    })
}

/// Whole rows with a weight, then groups without one, beside a residual use of the same value.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (x, w) = (e.param(5, 36), e.param(1, 36));
    let x = t.leaf(&x);
    let y = norm(t, x, &Norm { weight: Some(w), eps: 1e-5, width: 36 });
    let z = norm(t, y, &Norm { weight: None, eps: 1e-3, width: 12 });
    super::add(t, x, z, 1.0)
}
