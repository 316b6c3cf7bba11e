//! The recorder.

use std::ops::Range;

use planish_base::TypeId;
use planish_compute::call::{Add, Call, Product, Store, Zero};
use planish_compute::{Home, Label, Program, Stage, View};

use crate::segment::{self, Segment};

/// A value of the pass that is being recorded: [n, width] f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var(usize);

/// A tensor that outlives the pass. With a `grad` it is trainable, and backward passes add to that buffer.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Values, any type; [out, in] for matrices, [1, n] for vectors.
    pub view: View,
    /// Its gradient, f32, same shape.
    pub grad: Option<View>,
}

impl Param {
    /// A parameter that is not trained.
    pub fn frozen(view: View) -> Param {
        Param { view, grad: None }
    }
}

/// Whether a pass will be differentiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Records what backward needs; dropout is on.
    Train,
    /// Forward only.
    Infer,
}

type Back = Box<dyn FnOnce(&mut Tape, View)>;

/// Where a value's gradient lies when it is first asked for.
#[derive(Clone, Copy)]
enum GradHome {
    /// In a temporary of its own.
    Own,
    /// In these columns of another value's gradient.
    Columns(Var, usize),
    /// In the same place as another value's gradient: the result of an in-place operation.
    Same(Var),
}

struct Node {
    view: View,
    needs_grad: bool,
    grad_home: GradHome,
    grad: Option<View>,
    back: Option<Back>,
}

/// What becomes of the values inside a layer that its backward pass reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saved {
    /// Results of products and of attention stay until then; norms, gates and dropout are cheap to compute again.
    #[default]
    Kept,
    /// All go at the end of the layer and are computed again just before its backward pass (Chen et al., 2016).
    Recomputed,
}

/// Records calls and how to differentiate them.
pub struct Tape {
    mode: Mode,
    product: Product,
    saved: Saved,
    calls: Vec<Call>,
    labels: Vec<(usize, Label)>,
    temps: Vec<u64>,
    nodes: Vec<Node>,
    keep: Vec<View>,
    /// Layers whose backward pass has not been recorded yet.
    segments: Vec<Segment>,
    /// Nodes below this index have not been differentiated yet, or are just being.
    frontier: usize,
}

impl Tape {
    /// An empty tape. `product` is the arithmetic of all its matrix products.
    pub fn new(mode: Mode, product: Product) -> Tape {
        Tape {
            mode,
            product,
            saved: Saved::Kept,
            calls: Vec::new(),
            labels: Vec::new(),
            temps: Vec::new(),
            nodes: Vec::new(),
            keep: Vec::new(),
            segments: Vec::new(),
            frontier: 0,
        }
    }

    /// The same tape with layers treated this way. Gradients are the same bits either way.
    pub fn with_saved(self, saved: Saved) -> Tape {
        Tape { saved, ..self }
    }

    /// Whether backward will be asked for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The arithmetic of matrix products.
    pub fn product(&self) -> Product {
        self.product
    }

    /// The arithmetic of products with a thin side, as adapters have: rounding the whole of the other side to bf16
    /// would cost more than the few multiplications with it.
    pub fn thin_product(&self) -> Product {
        if self.product == Product::Dot { Product::Dot } else { Product::Packed }
    }

    /// A temporary f32 matrix.
    pub fn temp(&mut self, rows: usize, cols: usize) -> View {
        self.temps.push((rows * cols * 4) as u64);
        View::new(Home::Temp(self.temps.len() as u32 - 1), 0, rows, cols, TypeId::F32)
    }

    /// Appends a call.
    pub fn call(&mut self, call: impl Into<Call>) {
        self.calls.push(call.into());
    }

    /// Says that the calls from here on belong to this pass.
    pub fn stage(&mut self, stage: Stage) {
        let layer = self.labels.last().and_then(|(_, label)| label.layer);
        self.label(Label { stage, layer });
    }

    fn label(&mut self, label: Label) {
        self.labels.push((self.calls.len(), label));
    }

    /// Begins a layer. Layers follow each other and do not nest.
    pub fn begin_layer(&mut self, layer: usize) {
        self.label(Label { stage: Stage::Forward, layer: Some(layer) });
        let (calls, temps, nodes) = (self.calls.len(), self.temps.len() as u32, self.nodes.len());
        self.segments.push(Segment { layer, calls: calls..calls, temps: temps..temps, nodes: nodes..nodes });
    }

    /// Ends the layer begun last. Where layers are recomputed, a layer may write nothing but temporaries of its own:
    /// anything else would be written twice.
    pub fn end_layer(&mut self) {
        let (calls, temps, nodes) = (self.calls.len(), self.temps.len() as u32, self.nodes.len());
        let s = self.segments.last_mut().expect("a layer was begun");
        (s.calls.end, s.temps.end, s.nodes.end) = (calls, temps, nodes);
        self.label(Label::default());
    }

    /// Keeps a temporary until the end of the program, so that it can be downloaded.
    pub fn keep(&mut self, v: View) {
        self.keep.push(v);
    }

    /// Where a value lies.
    pub fn view(&self, x: Var) -> View {
        self.nodes[x.0].view
    }

    /// Whether something trainable lies behind a value.
    pub fn needs_grad(&self, x: Var) -> bool {
        self.nodes[x.0].needs_grad
    }

    /// Records a value with the closure that, given its gradient, appends the calls of its inputs' gradients. The
    /// closure is kept only when the pass trains and `needs_grad` says that something depends on it.
    pub fn push(
        &mut self,
        view: View,
        needs_grad: bool,
        back: impl FnOnce(&mut Tape, View) + 'static,
    ) -> Var {
        self.node(view, needs_grad, GradHome::Own, Box::new(back))
    }

    /// As [`Tape::push`], for the result of an operation that overwrote `x`; the closure turns the gradient of the
    /// result into that of `x` in place.
    pub fn push_in_place(&mut self, x: Var, back: impl FnOnce(&mut Tape, View) + 'static) -> Var {
        self.node(self.view(x), self.needs_grad(x), GradHome::Same(x), Box::new(back))
    }

    /// Columns `start .. start + cols` of a value. The columns taken of one value must not overlap, and together
    /// their gradients must cover it.
    pub fn columns(&mut self, x: Var, start: usize, cols: usize) -> Var {
        let view = self.view(x).columns(start, cols);
        self.node(view, self.needs_grad(x), GradHome::Columns(x, start), Box::new(|_, _| {}))
    }

    /// A parameter as a value.
    pub fn leaf(&mut self, p: &Param) -> Var {
        let param = *p;
        self.push(p.view, p.grad.is_some(), move |t, dy| {
            let grad = param.grad.expect("only trainable leaves are differentiated");
            t.call(Add { a: grad, b: dy, y: grad, scale: 1.0 });
        })
    }

    fn node(&mut self, view: View, needs_grad: bool, grad_home: GradHome, back: Back) -> Var {
        let needs_grad = needs_grad && self.mode == Mode::Train;
        let back = needs_grad.then_some(back);
        self.nodes.push(Node { view, needs_grad, grad_home, grad: None, back });
        Var(self.nodes.len() - 1)
    }

    /// Where to put a contribution to the gradient of `x`, and whether it is the first.
    pub fn grad_into(&mut self, x: Var) -> (View, Store) {
        match self.nodes[x.0].grad {
            None => (self.first_grad(x), Store::Replace),
            Some(grad) if self.is_shared(x, grad) => {
                let copy = self.temp(grad.rows, grad.cols);
                self.call(Zero { x: copy });
                self.call(Add { a: copy, b: grad, y: copy, scale: 1.0 });
                self.nodes[x.0].grad = Some(copy);
                (copy, Store::Accumulate)
            }
            Some(grad) => (grad, Store::Accumulate),
        }
    }

    /// Adds a finished gradient to that of `x`: without a copy where it is the first.
    pub fn grad_is(&mut self, x: Var, dy: View) {
        let node = &mut self.nodes[x.0];
        if node.grad.is_none() && matches!(node.grad_home, GradHome::Own) {
            node.grad = Some(dy);
            return;
        }
        let (grad, store) = self.grad_into(x);
        if store == Store::Replace {
            self.call(Zero { x: grad });
        }
        self.call(Add { a: grad, b: dy, y: grad, scale: 1.0 });
    }

    fn first_grad(&mut self, x: Var) -> View {
        let view = self.nodes[x.0].view;
        let grad = match self.nodes[x.0].grad_home {
            GradHome::Own => self.temp(view.rows, view.cols),
            GradHome::Same(of) => self.first_grad(of),
            GradHome::Columns(of, start) => {
                let whole = self.nodes[of.0].grad.unwrap_or_else(|| self.first_grad(of));
                whole.columns(start, view.cols)
            }
        };
        self.nodes[x.0].grad = Some(grad);
        grad
    }

    /// Whether a value that is still to be differentiated reads the same gradient.
    fn is_shared(&self, x: Var, grad: View) -> bool {
        let pending = &self.nodes[..self.frontier];
        pending.iter().enumerate().any(|(i, n)| i != x.0 && n.grad == Some(grad))
    }

    /// Starts the backward pass of `y` with a given gradient of it, which is left as it is.
    pub fn seed(&mut self, y: Var, dy: View) {
        let (grad, _) = self.grad_into(y);
        self.call(Zero { x: grad });
        self.call(Add { a: grad, b: dy, y: grad, scale: 1.0 });
    }

    /// Marks a loss, whose closure does not look at its own gradient.
    pub fn root(&mut self, y: Var) {
        self.nodes[y.0].grad = Some(self.nodes[y.0].view);
    }

    /// Appends the backward calls of everything that has a gradient and leads to something trainable.
    pub fn backward(&mut self) {
        let mut end = self.nodes.len();
        while let Some(s) = self.segments.pop() {
            self.differentiate(s.nodes.end..end, None);
            let start = self.calls.len();
            self.differentiate(s.nodes.clone(), Some(s.layer));
            self.recompute_before(start, &s);
            end = s.nodes.start;
        }
        self.differentiate(0..end, None);
    }

    /// Appends the backward calls of these nodes.
    fn differentiate(&mut self, nodes: Range<usize>, layer: Option<usize>) {
        self.label(Label { stage: Stage::Backward, layer });
        for i in nodes.rev() {
            self.frontier = i + 1;
            if let Some(grad) = self.nodes[i].grad
                && let Some(back) = self.nodes[i].back.take()
            {
                back(self, grad);
            }
        }
    }

    /// Puts forward calls of a layer, on temporaries of their own, in front of its backward calls, which begin at call
    /// `start` and shall read those. Nothing then reads the first ones after the end of the layer.
    fn recompute_before(&mut self, start: usize, s: &Segment) {
        if self.saved == Saved::Recomputed {
            s.check_repeatable(&self.calls);
        }
        let calls = &self.calls[s.calls.clone()];
        let mut again = if self.saved == Saved::Recomputed { calls.to_vec() } else { segment::cheap(calls) };
        let moved = segment::written(&again);
        let mut back = self.calls.split_off(start);
        let first = self.temps.len() as u32;
        self.temps.extend_from_within(s.temps.start as usize..s.temps.end as usize);
        let rename = &mut |v: &mut View| s.move_to(first, &moved, v);
        again.iter_mut().chain(&mut back).for_each(|call| call.visit_mut(rename));
        self.nodes[..s.nodes.start].iter_mut().filter_map(|n| n.grad.as_mut()).for_each(rename);
        self.stage(Stage::Recomputed);
        self.calls.extend(segment::needed(again, &back));
        self.stage(Stage::Backward);
        self.calls.extend(back);
    }

    /// The recorded calls with every temporary placed.
    pub fn finish(self) -> Program {
        Program::plan(self.calls, &self.temps, &self.keep).labelled(self.labels)
    }
}
