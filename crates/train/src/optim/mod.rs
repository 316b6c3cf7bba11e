//! Optimizers. An optimizer is one file here and one line in [`OPTIMS`]: it declares its slots, and checkpoints,
//! plans and tests walk them.

mod adamw;

use planish_base::{Error, Result, TypeId};
use planish_compute::call::Call;
use planish_compute::{Backend, View};

/// The settings every optimizer draws from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimSettings {
    /// First and second moment decay.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
}

/// One trained tensor as the optimizer sees it, all views [1, n] f32.
#[derive(Clone, Copy, Debug)]
pub struct Trained<'a> {
    /// The master values.
    pub param: View,
    /// The gradient.
    pub grad: View,
    /// The optimizer's slots, in the order it declares them.
    pub slots: &'a [View],
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

/// An optimizer.
pub struct Optim {
    /// The name on the command line.
    pub name: &'static str,
    /// State that each tensor has, zero at the start; each as large as the tensor.
    pub slots: &'static [&'static str],
    /// The numbers of step t, counted from 1, for a learning rate and a clip factor.
    pub hyper: fn(&OptimSettings, lr: f64, t: u64, clip: f64) -> Vec<f32>,
    /// The update of one tensor; `hyper` is [1, n].
    pub step: fn(&Trained, hyper: View) -> Call,
}

/// Every optimizer.
pub static OPTIMS: &[Optim] = &[adamw::OPTIM];

/// The optimizer of this name.
///
/// # Errors
/// Kind `Usage`, with the known names.
pub fn of(name: &str) -> Result<&'static Optim> {
    OPTIMS.iter().find(|o| o.name == name).ok_or_else(|| {
        let known: Vec<&str> = OPTIMS.iter().map(|o| o.name).collect();
        Error::usage("optimizer", format!("unknown optimizer `{name}`"))
            .with_hint(format!("one of {}", known.join(", ")))
    })
}

/// A tensor to train: values, gradient, weight decay.
#[derive(Clone, Debug)]
pub struct Target {
    /// For reports and checkpoints.
    pub name: String,
    /// Values and gradient.
    pub param: planish_tape::Param,
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

/// An optimizer with its state for a list of tensors.
pub struct OptimState {
    optim: &'static Optim,
    settings: OptimSettings,
    slots: Vec<Vec<View>>,
    hyper: View,
    calls: Vec<Call>,
}

impl OptimState {
    /// State of zeros.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn new(
        backend: &mut dyn Backend,
        optim: &'static Optim,
        settings: OptimSettings,
        targets: &[Target],
    ) -> Result<OptimState> {
        let n = (optim.hyper)(&settings, 0.0, 1, 1.0).len();
        let hyper = View::new(backend.alloc((n * 4) as u64)?, 0, 1, n, TypeId::F32);
        let mut state = OptimState { optim, settings, slots: Vec::new(), hyper, calls: Vec::new() };
        for t in targets {
            let param = flat(t.param.view);
            let mut slots = Vec::with_capacity(optim.slots.len());
            for _ in optim.slots {
                slots.push(View { home: backend.alloc(param.span())?, offset: 0, ..param });
            }
            let grad = flat(t.param.grad.expect("a target of training has a gradient"));
            let trained = Trained { param, grad, slots: &slots, weight_decay: t.weight_decay };
            state.calls.push((optim.step)(&trained, hyper));
            state.slots.push(slots);
        }
        Ok(state)
    }

    /// Updates every tensor: step t, counted from 1.
    pub fn step(&self, backend: &mut dyn Backend, lr: f64, t: u64, clip: f64) {
        backend.upload_f32(&self.hyper, &(self.optim.hyper)(&self.settings, lr, t, clip));
        self.calls.iter().for_each(|c| backend.exec(c));
    }

    /// Every slot of every tensor, as `TENSOR.SLOT`.
    pub fn slots(&self, targets: &[Target]) -> Vec<(String, View)> {
        let named = |(t, slots): (&Target, &Vec<View>)| {
            let names = self.optim.slots.iter().map(|slot| format!("{}.{slot}", t.name));
            names.zip(slots.iter().copied()).collect::<Vec<_>>()
        };
        targets.iter().zip(&self.slots).flat_map(named).collect()
    }
}

/// A dense matrix as one row.
pub fn flat(v: View) -> View {
    assert!(v.is_dense());
    View { rows: 1, cols: v.elements(), stride: v.elements(), ..v }
}
