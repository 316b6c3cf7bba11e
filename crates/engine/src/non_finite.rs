//! Where a training pass first computes an infinity or something that is not a number.

use std::fmt;

use planish_base::Result;
use planish_compute::call::Call;
use planish_compute::quant::Quant;
use planish_compute::{Backend, Isa, Program, Stage, View};
use planish_model::{AdapterSet, Ragged};

use crate::engine::Engine;

/// The first result of a pass that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// Number of the call in the program.
    pub call: usize,
    /// The call's name in the table of calls.
    pub op: &'static str,
    /// The block; none before the first and after the last.
    pub layer: Option<usize>,
    /// Forward for values, backward for gradients.
    pub pass: Stage,
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub cols: usize,
    /// Its first row that is not finite.
    pub row: usize,
    /// The tensor, gradient or setting among the call's operands that was not finite before the pass, by name. None
    /// where finite numbers gave this result.
    pub input: Option<String>,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", words(self.op))?;
        if let Some(layer) = self.layer {
            write!(f, " of layer {layer}")?;
        }
        let pass = if self.pass == Stage::Backward { "backward" } else { "forward" };
        write!(f, ", {pass}, {} x {}, first in row {}", self.rows, self.cols, self.row)?;
        match &self.input {
            Some(name) => write!(f, ", from {name}, which was not finite before the pass"),
            None => Ok(()),
        }
    }
}

/// `RmsNormBack` as `rms norm back`.
fn words(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.extend(c.to_lowercase());
    }
    out
}

impl Engine {
    /// Runs the training pass of a batch call by call, as [`Engine::train_batch`] does, and stops at the first call
    /// that computes something that is not finite; None when there is none. What lies in the gradient buffers is added
    /// to: zero them before, and do not use them after. Slow, since every result is read.
    ///
    /// # Errors
    /// Kind `Resource` without memory for the activations.
    pub fn first_nonfinite(
        &mut self,
        batch: &Ragged,
        adapters: &[&AdapterSet],
        normaliser: f32,
    ) -> Result<Option<NonFinite>> {
        let (program, _) = self.training_program(batch, adapters);
        self.reserve(program.arena_bytes())?;
        self.inputs.fill(&mut self.backend, batch, normaliser);
        let mut bad_before = self.named_views(batch, adapters);
        bad_before.retain(|(view, _)| first_bad_row(&self.backend, view).is_some());
        for (i, call) in program.calls().iter().enumerate() {
            self.backend.exec(call);
            if let Some(bad) = bad_result(&self.backend, call) {
                return Ok(Some(describe(&program, i, bad, &bad_before)));
            }
        }
        Ok(None)
    }

    /// All numbers that a pass is given.
    fn named_views(&self, batch: &Ragged, adapters: &[&AdapterSet]) -> Vec<(View, String)> {
        let normaliser = self.inputs.views(batch).1.normaliser;
        let mut views = vec![(normaliser, "the normaliser".to_string())];
        let base = self.params.named.iter().map(|n| (n.param, n.name.clone()));
        let pairs = adapters.iter().flat_map(|set| set.pairs()).flat_map(|(id, pair)| {
            let name = self.model.arch.linear_name(id);
            let half = |p, half: &str| (p, format!("{name}.weight.{half}"));
            let magnitude = pair.magnitude.map(|m| half(m.m, "lora_magnitude"));
            [half(pair.a, "lora_a"), half(pair.b, "lora_b")].into_iter().chain(magnitude)
        });
        for (param, name) in base.chain(pairs) {
            views.extend(param.grad.map(|grad| (grad, format!("the gradient of {name}"))));
            views.push((param.view, name));
        }
        views
    }
}

/// A result that is not finite.
struct Bad {
    view: View,
    row: usize,
    gradient: bool,
}

/// No call of a training pass writes an infinity on purpose: the scores that attention masks never leave its tiles, and
/// a row sees at least itself, so its log-sum-exp is finite.
fn bad_result(backend: &dyn Backend, call: &Call) -> Option<Bad> {
    let mut views = Vec::new();
    match call {
        // The logits have become their own gradient; whether they were finite before shows in the loss.
        Call::CrossEntropy(c) => views.extend([(c.loss, false), (c.logits, true)]),
        _ => call.visit(&mut |_| {}, &mut |v| views.push((*v, false))),
    }
    let bad = |(view, gradient)| first_bad_row(backend, &view).map(|row| Bad { view, row, gradient });
    views.into_iter().find_map(bad)
}

fn first_bad_row(backend: &dyn Backend, v: &View) -> Option<usize> {
    // A type without a codec is words: ids, positions, lengths.
    let quant = Quant::of(v.dtype).ok()?;
    let (mut bytes, mut values) = (vec![0; v.row_bytes() as usize], vec![0f32; v.cols]);
    (0..v.rows).find(|&row| {
        backend.download(&v.rows_range(row, 1), &mut bytes);
        quant.decode_range(Isa::Scalar, &bytes, 0, &mut values);
        values.iter().any(|x| !x.is_finite())
    })
}

fn describe(program: &Program, i: usize, bad: Bad, bad_before: &[(View, String)]) -> NonFinite {
    let (call, label) = (&program.calls()[i], program.label(i));
    let (mut operands, mut results) = (Vec::new(), Vec::new());
    call.visit(&mut |v| operands.push(*v), &mut |v| results.push(*v));
    operands.extend(results);
    let input = bad_before.iter().find(|(view, _)| operands.iter().any(|o| overlap(o, view)));
    NonFinite {
        call: i,
        op: call.name(),
        layer: label.layer,
        pass: if bad.gradient { Stage::Backward } else { label.stage },
        rows: bad.view.rows,
        cols: bad.view.cols,
        row: bad.row,
        input: input.map(|(_, name)| name.clone()),
    }
}

fn overlap(a: &View, b: &View) -> bool {
    a.home == b.home && a.offset < b.offset + b.span() && b.offset < a.offset + a.span()
}
