//! A bank of linear maps of one input, each with an optional bias and low-rank adapters.

use std::rc::Rc;

use planish_compute::View;
use planish_compute::call::{
    self, Along, Broadcast, ColumnSum, MagnitudeBack, MatMul, Product, Rescale, RowNorms, Store,
};

use super::Example;
use crate::tape::{Mode, Param, Tape, Var};

/// y = x W' + bias + sum of the adapters.
#[derive(Clone, Debug)]
pub struct Linear {
    /// [out, in], any type.
    pub weight: Param,
    /// [1, out].
    pub bias: Option<Param>,
    /// Low-rank terms.
    pub adapters: Vec<Adapter>,
}

/// scale * (dropout(x) A') B' (Hu et al., 2022).
#[derive(Clone, Copy, Debug)]
pub struct Adapter {
    /// [rank, in].
    pub a: Param,
    /// [out, rank].
    pub b: Param,
    /// alpha / rank, or alpha / sqrt(rank) for rsLoRA.
    pub scale: f32,
    /// Applied to x in training passes.
    pub dropout: Option<Dropout>,
    /// With it the map's product and the adapter's are both multiplied by magnitude / norm of the adapted row (DoRA);
    /// the map then has no other adapter.
    pub magnitude: Option<Magnitude>,
}

/// The trained norms of the rows of an adapted matrix (Liu et al., 2024).
#[derive(Clone, Copy, Debug)]
pub struct Magnitude {
    /// [1, out].
    pub m: Param,
    /// The norms of the rows of W + scale B A.
    pub norms: Norms,
}

/// Where the norms of adapted rows are, [1, out].
#[derive(Clone, Copy, Debug)]
pub enum Norms {
    /// Here, whatever the pass.
    Given(View),
    /// A pass that trains computes them; for others they have been put here.
    Trained(View),
}

/// Dropout of an adapter's input.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Probability of dropping.
    pub p: f32,
    /// [1, 4] words: seed low, seed high, step, micro-batch.
    pub key: View,
    /// Which dropout of the model this is.
    pub stream: u32,
}

impl Adapter {
    /// Whether a part of it has a gradient.
    pub(super) fn trains(&self) -> bool {
        [Some(self.a), Some(self.b), self.magnitude.map(|m| m.m)].iter().flatten().any(|p| p.grad.is_some())
    }

    /// The adapter's input in a pass.
    pub(super) fn input(&self, t: &mut Tape, x: View) -> View {
        match self.dropout {
            Some(d) if t.mode() == Mode::Train && d.p > 0.0 => dropout(t, x, d),
            _ => x,
        }
    }

    /// dx += dropout(dlow A).
    pub(super) fn input_back(&self, t: &mut Tape, dlow: View, dx: View) {
        let thin = t.thin_product();
        match self.dropout {
            Some(d) if d.p > 0.0 => {
                let dropped = t.temp(dx.rows, dx.cols);
                times_transposed(t, thin, dlow, self.a.view, dropped, 1.0, Store::Replace);
                let through = dropout(t, dropped, d);
                t.call(call::Add { a: dx, b: through, y: dx, scale: 1.0 });
            }
            _ => times_transposed(t, thin, dlow, self.a.view, dx, 1.0, Store::Accumulate),
        }
    }
}

/// The maps of x [n, in] side by side: [n, sum of outs].
pub fn linear(t: &mut Tape, x: Var, bank: &[&Linear]) -> Var {
    let xv = t.view(x);
    let y = t.temp(xv.rows, bank.iter().map(|l| l.weight.view.rows).sum());
    let mut start = 0;
    let mut parts = Vec::with_capacity(bank.len());
    for l in bank {
        let out = l.weight.view.rows;
        parts.push(forward(t, xv, l, y.columns(start, out)));
        start += out;
    }
    let x_needs = t.needs_grad(x);
    let trains = parts.iter().any(Part::trains);
    let parts = Rc::new(parts);
    t.push(y, x_needs || trains, move |t, dy| {
        let mut start = 0;
        for part in parts.iter() {
            let out = part.linear.weight.view.rows;
            backward(t, x, x_needs, part, dy.columns(start, out));
            start += out;
        }
    })
}

/// A map and what its backward pass needs: the adapters' inputs and their images under A.
struct Part {
    linear: Linear,
    lows: Vec<Low>,
    rescaled: Option<Rescaled>,
}

#[derive(Clone, Copy)]
struct Low {
    /// x after dropout.
    x: View,
    /// x A'.
    low: View,
}

/// What a magnitude is applied to.
#[derive(Clone, Copy)]
struct Rescaled {
    m: Param,
    norms: View,
    /// x (W + scale B A)'.
    u: View,
}

impl Part {
    fn trains(&self) -> bool {
        let l = &self.linear;
        let adapters = l.adapters.iter().any(Adapter::trains);
        adapters || l.weight.grad.is_some() || l.bias.is_some_and(|b| b.grad.is_some())
    }
}

fn forward(t: &mut Tape, x: View, l: &Linear, y: View) -> Part {
    assert_eq!(x.cols, l.weight.view.cols, "input width of a linear map");
    let magnitude = l.adapters.iter().find_map(|a| Some((*a, a.magnitude?)));
    assert!(magnitude.is_none() || l.adapters.len() == 1, "a magnitude is of one adapter");
    let u = match magnitude {
        Some(_) => t.temp(y.rows, y.cols),
        None => y,
    };
    let store = match l.bias.filter(|_| magnitude.is_none()) {
        Some(bias) => {
            t.call(Broadcast { row: bias.view, out: y });
            Store::Accumulate
        }
        None => Store::Replace,
    };
    let (product, thin) = (t.product(), t.thin_product());
    times(t, product, x, l.weight.view, u, 1.0, store);
    let mut lows = Vec::with_capacity(l.adapters.len());
    for a in &l.adapters {
        let dropped = a.input(t, x);
        let low = t.temp(x.rows, a.a.view.rows);
        times(t, thin, dropped, a.a.view, low, 1.0, Store::Replace);
        times(t, thin, low, a.b.view, u, a.scale, Store::Accumulate);
        lows.push(Low { x: dropped, low });
    }
    let rescaled = magnitude.map(|(a, m)| rescale(t, l, &a, &m, u, y));
    Part { linear: l.clone(), lows, rescaled }
}

/// y = u m / norms + bias.
fn rescale(t: &mut Tape, l: &Linear, a: &Adapter, magnitude: &Magnitude, u: View, y: View) -> Rescaled {
    let norms = match magnitude.norms {
        Norms::Trained(_) if t.mode() == Mode::Train => {
            let norms = t.temp(1, y.cols);
            let (w, a, b, scale) = (l.weight.view, a.a.view, a.b.view, a.scale);
            t.call(RowNorms { w, a, b, norms, scale });
            norms
        }
        Norms::Trained(norms) | Norms::Given(norms) => norms,
    };
    t.call(Rescale { x: u, magnitude: magnitude.m.view, norms, bias: l.bias.map(|b| b.view), y });
    Rescaled { m: magnitude.m, norms, u }
}

/// With a magnitude: du = dy m / norms, dm = colsum(dy u) / norms, where norms count as constants (Liu et al., 2024,
/// section 4.3); du is then dy. dx = dy W + dropout(scale dy B A), dW = dy' x, dbias = colsum dy,
/// dB = scale dy' (x A'), dA = (scale dy B)' x.
fn backward(t: &mut Tape, x: Var, x_needs: bool, part: &Part, dy: View) {
    let l = &part.linear;
    let (product, thin) = (t.product(), t.thin_product());
    if let Some(dbias) = l.bias.and_then(|b| b.grad) {
        t.call(ColumnSum { x: dy, out: dbias });
    }
    let dy = match &part.rescaled {
        Some(rescaled) => rescale_back(t, rescaled, dy),
        None => dy,
    };
    if x_needs {
        let (dx, store) = t.grad_into(x);
        times_transposed(t, product, dy, l.weight.view, dx, 1.0, store);
    }
    if let Some(dweight) = l.weight.grad {
        outer(t, product, dy, t.view(x), dweight, 1.0);
    }
    for (a, low) in l.adapters.iter().zip(&part.lows) {
        if let Some(db) = a.b.grad {
            outer(t, thin, dy, low.low, db, a.scale);
        }
        if a.a.grad.is_none() && !x_needs {
            continue;
        }
        let dlow = t.temp(dy.rows, a.a.view.rows);
        times_transposed(t, thin, dy, a.b.view, dlow, a.scale, Store::Replace);
        if let Some(da) = a.a.grad {
            outer(t, thin, dlow, low.x, da, 1.0);
        }
        if x_needs {
            let (dx, _) = t.grad_into(x);
            a.input_back(t, dlow, dx);
        }
    }
}

fn rescale_back(t: &mut Tape, r: &Rescaled, dy: View) -> View {
    let norms = r.norms;
    if let Some(dmagnitude) = r.m.grad {
        t.call(MagnitudeBack { dy, x: r.u, norms, dmagnitude });
    }
    let du = t.temp(dy.rows, dy.cols);
    t.call(Rescale { x: dy, magnitude: r.m.view, norms, bias: None, y: du });
    du
}

fn dropout(t: &mut Tape, x: View, d: Dropout) -> View {
    let y = t.temp(x.rows, x.cols);
    t.call(call::Dropout { x, key: d.key, y, p: d.p, stream: d.stream });
    y
}

/// c (+)= scale * x w', w [out, in].
pub(super) fn times(t: &mut Tape, product: Product, x: View, w: View, c: View, scale: f32, store: Store) {
    let along = Along::K;
    t.call(MatMul { a: x, b: w, c, a_along: along, b_along: along, scale, store, product });
}

/// c (+)= scale * dy w, w [out, in].
pub(super) fn times_transposed(
    t: &mut Tape,
    product: Product,
    dy: View,
    w: View,
    c: View,
    scale: f32,
    store: Store,
) {
    t.call(MatMul { a: dy, b: w, c, a_along: Along::K, b_along: Along::Outer, scale, store, product });
}

/// dw += scale * dy' x, the sum over rows.
pub(super) fn outer(t: &mut Tape, product: Product, dy: View, x: View, dw: View, scale: f32) {
    let (along, store) = (Along::Outer, Store::Accumulate);
    t.call(MatMul { a: dy, b: x, c: dw, a_along: along, b_along: along, scale, store, product });
}

/// A bank of a plain map, one with a bias and two adapters, one of them with dropout, and one with a magnitude. Norms
/// are given: computed ones count as constants, which differences would not know.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let x = e.param(9, 20);
    let key = e.words(1, 4, &[7, 0, 3, 0]);
    let plain = Linear { weight: e.param(6, 20), bias: None, adapters: Vec::new() };
    let adapter = |e: &mut Example, dropout| {
        let (a, b) = (e.param(3, 20), e.param(17, 3));
        Adapter { a, b, scale: 0.5, dropout, magnitude: None }
    };
    let rich = Linear {
        weight: e.param(17, 20),
        bias: Some(e.param(1, 17)),
        adapters: vec![adapter(e, None), adapter(e, Some(Dropout { p: 0.4, key, stream: 2 }))],
    };
    let norms = e.floats(1, 17, &[0.5, 1.0, 0.0, 4.0].repeat(5)[..17]);
    let magnitude = Some(Magnitude { m: e.param(1, 17), norms: Norms::Given(norms) });
    let rescaled = Linear {
        weight: e.param(17, 20),
        bias: Some(e.param(1, 17)),
        adapters: vec![Adapter { magnitude, ..adapter(e, None) }],
    };
    let x = t.leaf(&x);
    linear(t, x, &[&plain, &rich, &rescaled])
}
