//! Layers that are computed again in the backward pass: the same bits, in less memory.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

use planish_compute::call::{Activation, Heads, Product, RopeStyle};
use planish_compute::{Backend, CpuBackend, Isa, Program, Stage};
use planish_tape::ops::{
    Adapter, Attention, Dropout, Example, Linear, Norm, OPS, Objective, Rotary, add, attend, gated, linear,
    norm, rope,
};
use planish_tape::{Mode, Saved, Tape, Var};

/// The bits of the result and of every gradient, and the program they came from.
struct Ran {
    bits: Vec<Vec<u32>>,
    program: Program,
}

fn run(saved: Saved, threads: usize, record: &dyn Fn(&mut Tape, &mut Example) -> Var) -> Ran {
    let mut cpu = CpuBackend::new(Isa::detect(), threads).unwrap();
    let mut e = Example::new(&mut cpu);
    let mut t = Tape::new(Mode::Train, Product::Packed).with_saved(saved);
    let y = record(&mut t, &mut e);
    let y_view = t.view(y);
    let seed = e.floats(y_view.rows, y_view.cols, &Example::normals(1000, y_view.elements()));
    t.seed(y, seed);
    t.backward();
    t.keep(y_view);
    let params = e.params().to_vec();
    let program = t.finish();
    cpu.reserve(program.arena_bytes()).unwrap();
    cpu.run(&program);
    let views = std::iter::once(program.view(&y_view)).chain(params.iter().filter_map(|p| p.grad));
    let bits = views.map(|v| cpu.download_f32(&v).iter().map(|x| x.to_bits()).collect()).collect();
    Ran { bits, program }
}

const ROWS: usize = 70;
const WIDTH: usize = 32;

fn map(e: &mut Example, out: usize, input: usize) -> Linear {
    let key = e.words(1, 4, &[7, 0, 3, 0]);
    let dropout = Some(Dropout { p: 0.4, key, stream: 2 });
    let adapter = Adapter { a: e.param(3, input), b: e.param(out, 3), scale: 0.5, dropout, magnitude: None };
    Linear { weight: e.param(out, input), bias: Some(e.param(1, out)), adapters: vec![adapter] }
}

/// Every operation that may be in a layer: in place, with dropout, with values used twice, one also after the layer.
fn layer(t: &mut Tape, e: &mut Example, x: Var) -> (Var, Var) {
    let segments = e.words(2, 4, &[0, 3, 0, 0, 3, 67, 0, 0]);
    let positions = e.words(ROWS, 1, &(0..ROWS as u32).collect::<Vec<_>>());
    let angles: Vec<f32> = (0..ROWS * 4).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();
    let rotary = Rotary { table: e.floats(ROWS, 8, &angles), width: 8, style: RopeStyle::Halves };
    let heads = Heads { query: 4, kv: 2, width: 8, scale: 0.3 };
    let a = norm(t, x, &Norm { weight: Some(e.param(1, WIDTH)), eps: 1e-5, width: WIDTH });
    let qkv = [map(e, 32, WIDTH), map(e, 16, WIDTH), map(e, 16, WIDTH)];
    let qkv = linear(t, a, &qkv.iter().collect::<Vec<_>>());
    let (q, k, v) = (t.columns(qkv, 0, 32), t.columns(qkv, 32, 16), t.columns(qkv, 48, 16));
    let (q, k) = (rope(t, q, positions, &rotary), rope(t, k, positions, &rotary));
    let a = attend(t, q, k, v, &Attention { segments, heads });
    // Only the sum reads this product, and backward reads only the sum.
    let a = linear(t, a, &[&map(e, WIDTH, 32)]);
    let y = add(t, x, a, 1.0);
    let gate_up = linear(t, y, &[&map(e, 80, WIDTH)]);
    let (gate, up) = (t.columns(gate_up, 0, 40), t.columns(gate_up, 40, 40));
    let h = gated(t, gate, up, Activation::Silu);
    let down = linear(t, h, &[&map(e, WIDTH, 40)]);
    let y2 = add(t, y, down, 0.25);
    (add(t, y2, y, 1.0), y)
}

fn layers(n: usize) -> impl Fn(&mut Tape, &mut Example) -> Var {
    move |t, e| {
        let mut x = t.leaf(&e.param(ROWS, WIDTH));
        let mut inner = x;
        for i in 0..n {
            t.begin_layer(i);
            (x, inner) = layer(t, e, x);
            t.end_layer();
        }
        add(t, x, inner, 0.5)
    }
}

#[test]
fn gradients_are_the_same_bits() {
    let want = run(Saved::Kept, 1, &layers(6));
    assert!(want.bits.iter().all(|v| v.iter().any(|x| f32::from_bits(*x) != 0.0)));
    for threads in [1, 3] {
        let got = run(Saved::Recomputed, threads, &layers(6));
        assert!(got.bits == want.bits, "{threads} threads");
        let (less, more) = (got.program.arena_bytes(), want.program.arena_bytes());
        assert!(2 * less < more, "{less} of {more} bytes");
    }
}

/// Every operation alone in a layer, but the loss, which adds to the head's gradient as it goes forward.
#[test]
fn every_operation_can_be_computed_again() {
    for op in OPS.iter().filter(|op| op.objective == Objective::Seeded) {
        let record = |t: &mut Tape, e: &mut Example| {
            t.begin_layer(0);
            let y = (op.example)(t, e);
            t.end_layer();
            y
        };
        let [want, got] = [Saved::Kept, Saved::Recomputed].map(|saved| run(saved, 2, &record).bits);
        assert!(got == want, "{}", op.name);
    }
}

#[test]
fn calls_are_labelled() {
    let program = run(Saved::Recomputed, 1, &layers(2)).program;
    let labels = (0..program.calls().len()).map(|i| program.label(i));
    let mut labels: Vec<_> = labels.map(|l| (l.stage, l.layer)).collect();
    labels.dedup();
    use Stage::{Backward, Forward, Recomputed};
    let want = [
        (Forward, Some(0)),
        (Forward, Some(1)),
        (Forward, None),
        (Backward, None),
        (Recomputed, Some(1)),
        (Backward, Some(1)),
        (Recomputed, Some(0)),
        (Backward, Some(0)),
        (Backward, None),
    ];
    assert_eq!(labels, want);
}

/// The gradient of x + W norm(x) reads norm(x) alone: neither the product nor the sum is computed again.
#[test]
fn only_what_is_read_is_computed_again() {
    let program = run(Saved::Recomputed, 1, &|t, e| {
        let x = t.leaf(&e.param(4, 8));
        t.begin_layer(0);
        let a = norm(t, x, &Norm { weight: None, eps: 1e-5, width: 8 });
        let weight = e.param(8, 8);
        let a = linear(t, a, &[&Linear { weight, bias: None, adapters: Vec::new() }]);
        let y = add(t, x, a, 1.0);
        t.end_layer();
        y
    })
    .program;
    let again = (0..program.calls().len()).filter(|&i| program.label(i).stage == Stage::Recomputed);
    assert_eq!(again.map(|i| program.calls()[i].name()).collect::<Vec<_>>(), ["RmsNorm"]);
}

/// A second run of the rotation would turn its input twice.
#[test]
#[should_panic(expected = "Rope writes beyond its layer")]
fn a_layer_that_changes_its_input_is_refused() {
    run(Saved::Recomputed, 1, &|t, e| {
        let positions = e.words(2, 1, &[0, 1]);
        let table = e.floats(2, 8, &[0.5; 16]);
        let (x, zero) = (t.leaf(&e.param(2, 8)), t.leaf(&e.param(2, 8)));
        let x = add(t, x, zero, 1.0);
        t.begin_layer(0);
        let y = rope(t, x, positions, &Rotary { table, width: 8, style: RopeStyle::Halves });
        t.end_layer();
        y
    });
}
