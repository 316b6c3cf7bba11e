//! An average of the weights over the steps of a run, in which older weights count for less.
//!
//! As PyTorch's `AveragedModel` with `get_ema_multi_avg_fn`: after the first update the average is the weights, after
//! each later one a = d a + (1 - d) w. Nothing is to be corrected: no zeros ever enter it.

use planish_base::{Result, TypeId};
use planish_compute::call::{Average, Product};
use planish_compute::{Backend, Program, View};
use planish_tape::{Mode, Tape};

use crate::optim::{Target, flat};

/// Values that change places at one time.
const CHUNK: usize = 1 << 20;

/// The averages of a list of tensors.
pub struct Ema {
    decay: f64,
    averages: Vec<View>,
    share: View,
    step: Program,
}

impl Ema {
    /// Averages that the first update sets. `decay` is the share of the old average, in (0, 1).
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn new(backend: &mut dyn Backend, targets: &[Target], decay: f64) -> Result<Ema> {
        let share = View::new(backend.alloc(4)?, 0, 1, 1, TypeId::F32);
        let mut averages = Vec::with_capacity(targets.len());
        let mut tape = Tape::new(Mode::Infer, Product::Packed);
        for t in targets {
            let average = View { home: backend.alloc(t.param.view.span())?, ..t.param.view };
            tape.call(Average { x: flat(t.param.view), hyper: share, y: flat(average) });
            averages.push(average);
        }
        Ok(Ema { decay, averages, share, step: tape.finish() })
    }

    /// After update `t` of the weights, counted from 1.
    pub fn update(&self, backend: &mut dyn Backend, t: u64) {
        let share = if t == 1 { 1.0 } else { 1.0 - self.decay };
        backend.upload_f32(&self.share, &[share as f32]);
        backend.run(&self.step);
    }

    /// The averages, in the order of the tensors.
    pub fn averages(&self) -> &[View] {
        &self.averages
    }

    /// Exchanges weights and averages; a second time, they are as before.
    pub fn swap(&self, backend: &mut dyn Backend, targets: &[Target]) {
        for (t, average) in targets.iter().zip(&self.averages) {
            let (weights, average) = (flat(t.param.view), flat(*average));
            for start in (0..weights.cols).step_by(CHUNK) {
                let n = CHUNK.min(weights.cols - start);
                let (w, a) = (weights.columns(start, n), average.columns(start, n));
                let (old, mean) = (backend.download_f32(&w), backend.download_f32(&a));
                backend.upload_f32(&w, &mean);
                backend.upload_f32(&a, &old);
            }
        }
    }
}
