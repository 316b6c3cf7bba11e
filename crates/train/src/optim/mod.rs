//! Optimizers. An optimizer is one file here and one line in [`OPTIMS`]: it declares its slots, and checkpoints,
//! plans and tests walk them.

mod adafactor;
mod adamw;
mod adamw8;
mod lion;
mod muon;
mod schedule_free;
mod sgd;

use planish_base::{Error, Result, TypeId};
use planish_compute::call::Product;
use planish_compute::{Backend, Home, Program, View};
use planish_tape::{Mode, Tape};

/// The settings every optimizer draws from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimSettings {
    /// First and second moment decay.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// What stays of the sum of earlier gradients.
    pub momentum: f64,
    /// Whether that sum is looked at one step ahead.
    pub nesterov: bool,
}

impl OptimSettings {
    /// What most papers take.
    pub const USUAL: OptimSettings =
        OptimSettings { betas: (0.9, 0.999), eps: 1e-8, momentum: 0.9, nesterov: false };
}

/// What a tensor is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A map from one vector to another, a half of an adapter's pair, or a vector.
    Map,
    /// A row for each token: embedding and head.
    Table,
}

/// A tensor as far as an optimizer's choices may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Rows; 1 of a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// What it is to the model.
    pub class: Class,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether it has one row or column only.
    pub fn is_vector(&self) -> bool {
        self.rows == 1 || self.cols == 1
    }
}

/// How long a slot's content is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// From step to step: checkpoints hold it.
    Always,
    /// From the beginning of a step to its end.
    WithinStep,
}

/// State of one tensor, zero at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name in checkpoints, after the tensor's.
    pub name: &'static str,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type of its elements: F32, F64, or I8 for codes.
    pub dtype: TypeId,
    /// How long it is needed.
    pub kept: Kept,
}

impl Slot {
    /// `n` numbers in single precision.
    pub fn vector(name: &'static str, n: usize) -> Slot {
        Slot { name, rows: 1, cols: n, dtype: TypeId::F32, kept: Kept::Always }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.view(Home::Arena).span()
    }

    fn view(&self, home: Home) -> View {
        View::new(home, 0, self.rows, self.cols, self.dtype)
    }
}

/// One trained tensor at the recording of a step. Its values and its gradient are f32.
#[derive(Clone, Copy, Debug)]
pub struct Trained<'a> {
    /// Its shape and class.
    pub tensor: Tensor,
    /// The master values, [1, n].
    pub param: View,
    /// The gradient, [1, n].
    pub grad: View,
    /// The optimizer's slots, in the order it declares them.
    pub slots: &'a [View],
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

impl Trained<'_> {
    /// A view of [1, n] in the tensor's own shape.
    pub fn shaped(&self, v: View) -> View {
        View { rows: self.tensor.rows, cols: self.tensor.cols, stride: self.tensor.cols, ..v }
    }
}

/// Records calls for one tensor; `hyper` is [1, n].
pub type Record = fn(&mut Tape, &Trained, hyper: View);

/// For an optimizer whose gradients are taken elsewhere than at the weights that it arrives at. Between steps the
/// weights are always those to look at, export and save.
pub struct Detour {
    /// From the weights to where the gradient is taken.
    pub begin: Record,
    /// Back to the weights as they were, when a step has to be given up.
    pub abandon: Record,
}

/// An optimizer.
pub struct Optim {
    /// The name on the command line.
    pub name: &'static str,
    /// The settings that it has, of `betas`, `momentum` and `nesterov`.
    pub uses: &'static [&'static str],
    /// What they are where the user says nothing.
    pub usual: OptimSettings,
    /// Its highest learning rate where the user gives none, as a multiple of AdamW's.
    pub rate: f64,
    /// The state that a tensor has.
    pub slots: fn(&Tensor) -> Vec<Slot>,
    /// The numbers of step t, counted from 1, for a learning rate and a clip factor.
    pub hyper: fn(&OptimSettings, lr: f64, t: u64, clip: f64) -> Vec<f32>,
    /// The update of one tensor.
    pub step: Record,
    /// Where gradients are taken, if not at the weights.
    pub detour: Option<Detour>,
}

/// Every optimizer.
pub static OPTIMS: &[Optim] = &[
    adamw::OPTIM,
    adamw8::OPTIM,
    schedule_free::OPTIM,
    sgd::OPTIM,
    lion::OPTIM,
    adafactor::OPTIM,
    muon::OPTIM,
];

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

impl Optim {
    /// Bytes of all slots of these tensors.
    pub fn slot_bytes(&self, tensors: &[Tensor]) -> u64 {
        tensors.iter().flat_map(self.slots).map(|slot| slot.bytes()).sum()
    }
}

/// A tensor to train: values, gradient, weight decay.
#[derive(Clone, Debug)]
pub struct Target {
    /// For reports and checkpoints.
    pub name: String,
    /// Values and gradient.
    pub param: planish_tape::Param,
    /// What it is to the model.
    pub class: Class,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Its learning rate as a multiple of the step's; 1 is usual.
    pub rate: f32,
}

impl Target {
    fn tensor(&self) -> Tensor {
        Tensor { rows: self.param.view.rows, cols: self.param.view.cols, class: self.class }
    }
}

/// An optimizer with its state for a list of tensors.
pub struct OptimState {
    optim: &'static Optim,
    settings: OptimSettings,
    slots: Vec<Vec<(Slot, View)>>,
    /// Each multiple of the learning rate that a target has, once.
    rates: Vec<f32>,
    /// [rates, n]: the numbers of a step for each of them.
    hyper: View,
    step: Program,
    begin: Option<Program>,
    abandon: Option<Program>,
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
        let mut rates: Vec<f32> = targets.iter().map(|t| t.rate).collect();
        rates.sort_by(f32::total_cmp);
        rates.dedup();
        let n = (optim.hyper)(&settings, 0.0, 1, 1.0).len();
        let hyper = View::new(backend.alloc((rates.len() * n * 4) as u64)?, 0, rates.len(), n, TypeId::F32);
        let mut slots = Vec::with_capacity(targets.len());
        for t in targets {
            let of_tensor = (optim.slots)(&t.tensor()).into_iter();
            slots.push(
                of_tensor
                    .map(|slot| Ok((slot, slot.view(backend.alloc(slot.bytes())?))))
                    .collect::<Result<Vec<_>>>()?,
            );
        }
        let record = |record: Record| program(record, targets, &slots, &rates, hyper);
        let step = record(optim.step);
        let begin = optim.detour.as_ref().map(|d| record(d.begin));
        let abandon = optim.detour.as_ref().map(|d| record(d.abandon));
        Ok(OptimState { optim, settings, slots, rates, hyper, step, begin, abandon })
    }

    /// Before the gradients of step t, counted from 1.
    pub fn begin(&self, backend: &mut dyn Backend, lr: f64, t: u64) {
        if let Some(begin) = &self.begin {
            self.upload(backend, lr, t, 1.0);
            backend.run(begin);
        }
    }

    /// Instead of the update that [`OptimState::begin`] has announced.
    pub fn abandon(&self, backend: &mut dyn Backend) {
        if let Some(abandon) = &self.abandon {
            backend.run(abandon);
        }
    }

    /// Updates every tensor: step t, counted from 1.
    ///
    /// # Errors
    /// Kind `Resource` without memory for its temporaries.
    pub fn step(&self, backend: &mut dyn Backend, lr: f64, t: u64, clip: f64) -> Result<()> {
        backend.reserve(self.step.arena_bytes())?;
        self.upload(backend, lr, t, clip);
        backend.run(&self.step);
        Ok(())
    }

    fn upload(&self, backend: &mut dyn Backend, lr: f64, t: u64, clip: f64) {
        let numbers = |rate: &f32| (self.optim.hyper)(&self.settings, lr * f64::from(*rate), t, clip);
        backend.upload_f32(&self.hyper, &self.rates.iter().flat_map(numbers).collect::<Vec<_>>());
    }

    /// Bytes of arena that a step needs.
    pub fn arena_bytes(&self) -> u64 {
        self.step.arena_bytes()
    }

    /// Bytes of all slots.
    pub fn slot_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|(slot, _)| slot.bytes()).sum()
    }

    /// Every slot that outlives a step, of every tensor, as `TENSOR.SLOT`.
    pub fn slots(&self, targets: &[Target]) -> Vec<(String, View)> {
        let of_tensor = |(t, slots): (&Target, &Vec<(Slot, View)>)| {
            let kept = slots.iter().filter(|(slot, _)| slot.kept == Kept::Always);
            kept.map(|(slot, view)| (format!("{}.{}", t.name, slot.name), *view)).collect::<Vec<_>>()
        };
        targets.iter().zip(&self.slots).flat_map(of_tensor).collect()
    }
}

/// What is recorded for every tensor, one after the other, so that temporaries share their memory.
fn program(
    record: Record,
    targets: &[Target],
    slots: &[Vec<(Slot, View)>],
    rates: &[f32],
    hyper: View,
) -> Program {
    // No operation of a pass is recorded, so the mode does not matter.
    let mut tape = Tape::new(Mode::Infer, Product::Packed);
    for (t, slots) in targets.iter().zip(slots) {
        let (tensor, weight_decay) = (t.tensor(), t.weight_decay);
        let grad = flat(t.param.grad.expect("a target of training has a gradient"));
        let slots: Vec<View> = slots.iter().map(|(_, view)| *view).collect();
        let trained = Trained { tensor, param: flat(t.param.view), grad, slots: &slots, weight_decay };
        let row = rates.iter().position(|r| *r == t.rate).expect("each target's rate is listed");
        record(&mut tape, &trained, hyper.rows_range(row, 1));
    }
    tape.finish()
}

/// Temporary numbers in double precision.
fn doubles(tape: &mut Tape, n: usize) -> View {
    View { cols: n, stride: n, dtype: TypeId::F64, ..tape.temp(1, 2 * n) }
}

/// A dense matrix as one row.
pub fn flat(v: View) -> View {
    assert!(v.is_dense());
    View { rows: 1, cols: v.elements(), stride: v.elements(), ..v }
}
