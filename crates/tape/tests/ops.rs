//! Every operation of OPS: backward formulas against finite differences in double precision, kernels against the
//! double-precision oracle, and the same bits on any number of threads.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

use planish_compute::call::Product;
use planish_compute::{Backend, CpuBackend, Isa, View};
use planish_tape::ops::{Example, OPS, Objective, Op};
use planish_tape::oracle::Oracle;
use planish_tape::{Mode, Param, Tape};

/// A recorded and executed example.
struct Ran {
    y: View,
    seed: View,
    params: Vec<Param>,
    forward: planish_compute::Program,
}

/// Records the example twice: forward alone (for finite differences) and with its backward pass, and executes both.
fn run(op: &Op, backend: &mut dyn Backend) -> Ran {
    let record = |e: &mut Example, backward: bool, seed: Option<View>| {
        let mut t = Tape::new(Mode::Train, Product::Packed);
        let y = (op.example)(&mut t, e);
        let view = t.view(y);
        if backward {
            if let Some(seed) = seed {
                t.seed(y, seed);
            }
            t.backward();
        }
        t.keep(view);
        (t.finish(), view)
    };
    let mut e = Example::new(backend);
    // Parameters are handed out in the same order, so a second recording would make new ones: record once for the
    // shape of the result, then for real.
    let (_, shape) = record(&mut e, false, None);
    let seed_values = Example::normals(1000, shape.elements());
    let seed = e.floats(shape.rows, shape.cols, &seed_values);
    let first = e.params().len();
    let seeded = (op.objective == Objective::Seeded).then_some(seed);
    let (program, y) = record(&mut e, true, seeded);
    let params = e.params()[first..].to_vec();
    let y = program.view(&y);
    backend.reserve(program.arena_bytes()).unwrap();
    backend.run(&program);
    Ran { y, seed, params, forward: program }
}

fn values(backend: &dyn Backend, v: &View) -> Vec<f32> {
    backend.download_f32(v)
}

#[test]
fn backward_agrees_with_finite_differences() {
    for op in OPS {
        let mut o = Oracle::default();
        let ran = run(op, &mut o);
        let mut checked = 0;
        for p in &ran.params {
            let (view, grad) = (p.view, p.grad.unwrap());
            // About twenty elements of a parameter, spread over it.
            let step = view.elements().div_ceil(19);
            for i in (0..view.elements()).step_by(step) {
                let (r, c) = (i / view.cols, i % view.cols);
                let analytic = o.get(&grad, r, c);
                let mut at = |delta: f64| {
                    let x = o.get(&view, r, c);
                    o.set(&view, r, c, x + delta);
                    let value = objective(op, &mut o, &ran);
                    o.set(&view, r, c, x);
                    value
                };
                let h = 1e-4;
                // Fourth-order central difference.
                let numeric = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
                let tolerance = 1e-7 * (1.0 + analytic.abs());
                assert!(
                    (analytic - numeric).abs() < tolerance,
                    "{}: element ({r}, {c}) of a {}x{} parameter: {analytic} against {numeric}",
                    op.name,
                    view.rows,
                    view.cols
                );
                checked += 1;
            }
        }
        assert!(checked > 0, "{} has no parameter", op.name);
    }
}

/// The number that was differentiated, computed again. Gradients accumulate meanwhile; they were read before.
fn objective(op: &Op, o: &mut Oracle, ran: &Ran) -> f64 {
    let grads: Vec<Vec<f64>> = ran.params.iter().map(|p| snapshot(o, &p.grad.unwrap())).collect();
    o.run(&ran.forward);
    for (p, g) in ran.params.iter().zip(grads) {
        let v = p.grad.unwrap();
        g.iter().enumerate().for_each(|(i, x)| o.set(&v, i / v.cols, i % v.cols, *x));
    }
    let elements = (0..ran.y.rows).flat_map(|r| (0..ran.y.cols).map(move |c| (r, c)));
    match op.objective {
        Objective::Seeded => elements.map(|(r, c)| o.get(&ran.y, r, c) * o.get(&ran.seed, r, c)).sum(),
        Objective::Loss(factor) => {
            f64::from(factor) * elements.map(|(r, c)| o.get(&ran.y, r, c)).sum::<f64>()
        }
    }
}

fn snapshot(o: &Oracle, v: &View) -> Vec<f64> {
    (0..v.elements()).map(|i| o.get(v, i / v.cols, i % v.cols)).collect()
}

#[test]
fn kernels_agree_with_the_oracle_on_every_path() {
    for op in OPS {
        let mut o = Oracle::default();
        let want = run(op, &mut o);
        for isa in Isa::available() {
            let mut cpu = CpuBackend::new(isa, 2).unwrap();
            let got = run(op, &mut cpu);
            let mut pairs = vec![("the result".to_string(), want.y, got.y)];
            for (i, (w, g)) in want.params.iter().zip(&got.params).enumerate() {
                pairs.push((format!("gradient {i}"), w.grad.unwrap(), g.grad.unwrap()));
            }
            for (what, w, g) in pairs {
                let (w, g) = (snapshot(&o, &w), values(&cpu, &g));
                let norm = w.iter().map(|x| x * x).sum::<f64>().sqrt();
                let error = w.iter().zip(&g).map(|(w, g)| (w - f64::from(*g)).powi(2)).sum::<f64>().sqrt();
                assert!(
                    error <= 2e-6 * norm,
                    "{} on {}: {what} is off by {error:e} of {norm:e}",
                    op.name,
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for op in OPS {
        let mut bits: Option<Vec<Vec<u32>>> = None;
        for threads in [1, 2, 3, 8] {
            let mut cpu = CpuBackend::new(Isa::detect(), threads).unwrap();
            let ran = run(op, &mut cpu);
            let views = std::iter::once(ran.y).chain(ran.params.iter().filter_map(|p| p.grad));
            let now: Vec<Vec<u32>> =
                views.map(|v| values(&cpu, &v).iter().map(|x| x.to_bits()).collect()).collect();
            assert_eq!(*bits.get_or_insert_with(|| now.clone()), now, "{} on {threads} threads", op.name);
        }
    }
}
