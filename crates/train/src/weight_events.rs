//! Events about trained tensors one by one: their gradients, and how far they are from where they began.

use planish_base::Result;
use planish_compute::quant::Quant;
use planish_compute::{Backend, Isa, View};
use planish_engine::{Engine, Model};
use planish_model::{LinearId, ROLES};
use serde_json::json;

use crate::events::Events;
use crate::optim::{Target, flat};

/// Values that are looked at at one time.
const CHUNK: usize = 1 << 20;

/// Writes a `grad` event for each tensor: of the gradients of the step's mean loss, before clipping, as they are until
/// the next step.
///
/// # Errors
/// Kind `Resource` when the log cannot be written.
pub(crate) fn gradients(events: &mut Events, engine: &Engine, targets: &[Target], step: usize) -> Result<()> {
    for t in targets {
        let (mut squares, mut magnitudes, mut nan_count) = (0f64, 0f64, 0u64);
        let grad = t.param.grad.expect("a target has a gradient");
        each_chunk(engine, &grad, |_, values| {
            for v in values {
                squares += f64::from(*v).powi(2);
                magnitudes += f64::from(v.abs());
                nan_count += u64::from(v.is_nan());
            }
            Ok(())
        })?;
        let fields = json!({"phase": "train", "param": param(&engine.model, &t.name), "shape": shape(&t.param.view),
                            "l2": squares.sqrt(), "abs_mean": magnitudes / grad.elements() as f64,
                            "nan_count": nan_count});
        events.append("grad", Some(step), fields)?;
    }
    Ok(())
}

/// Where the trained tensors began.
pub(crate) enum Initial {
    /// As the base's file has them, which stays where it is.
    Base,
    /// In memory, in the order of the tensors.
    Kept(Vec<Vec<f32>>),
}

impl Initial {
    /// Keeps the tensors as they are now.
    pub fn keep(engine: &Engine, targets: &[Target]) -> Initial {
        Initial::Kept(targets.iter().map(|t| engine.backend.download_f32(&t.param.view)).collect())
    }

    /// Writes a `drift` event for each tensor: the cosine between its values and the initial ones, null where one of
    /// them is zero, and the norm of their difference.
    ///
    /// # Errors
    /// Kind `Resource` when the log cannot be written.
    pub fn drift(&self, events: &mut Events, engine: &Engine, targets: &[Target], step: usize) -> Result<()> {
        for (i, t) in targets.iter().enumerate() {
            let (mut dot, mut now, mut then, mut apart) = (0f64, 0f64, 0f64, 0f64);
            each_chunk(engine, &t.param.view, |start, values| {
                let initial = self.values(&engine.model, i, &t.name, start, values.len())?;
                for (v, v0) in values.iter().zip(initial) {
                    let (v, v0) = (f64::from(*v), f64::from(v0));
                    dot += v * v0;
                    now += v * v;
                    then += v0 * v0;
                    apart += (v - v0).powi(2);
                }
                Ok(())
            })?;
            if matches!(self, Initial::Base) {
                engine.model.release();
            }
            let cosine = dot / (now.sqrt() * then.sqrt());
            let fields = json!({"phase": "train", "param": param(&engine.model, &t.name),
                                "cos_to_init": cosine.is_finite().then(|| cosine.clamp(-1.0, 1.0)),
                                "l2_to_init": apart.sqrt()});
            events.append("drift", Some(step), fields)?;
        }
        Ok(())
    }

    /// The initial values `start .. start + n` of tensor `i`.
    fn values(&self, model: &Model, i: usize, name: &str, start: usize, n: usize) -> Result<Vec<f32>> {
        match self {
            Initial::Kept(tensors) => Ok(tensors[i][start..start + n].to_vec()),
            Initial::Base => {
                let entry = model.weights.require(name)?;
                let mut values = vec![0f32; n];
                let quant = Quant::of(entry.dtype)?;
                quant.decode_range(Isa::detect(), model.weights.bytes(entry), start, &mut values);
                Ok(values)
            }
        }
    }
}

/// Calls `f` with the values of a matrix in order, a part at a time, and where each part starts.
fn each_chunk(engine: &Engine, view: &View, mut f: impl FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
    let values = flat(*view);
    for start in (0..values.cols).step_by(CHUNK) {
        let n = CHUNK.min(values.cols - start);
        f(start, &engine.backend.download_f32(&values.columns(start, n)))?;
    }
    Ok(())
}

/// The name of a tensor in events: that of the GGUF file, and for a part of an adapter that of the matrix which it
/// belongs to, as `blk.0.attn_q.weight#lora_a`.
fn param(model: &Model, name: &str) -> String {
    let parts: Vec<&str> = name.splitn(4, '.').collect();
    if let ["blk", layer, role, part] = parts[..]
        && let Ok(layer) = layer.parse()
        && let Some(role) = ROLES.into_iter().find(|r| r.name() == role)
    {
        return format!("{}.weight#{part}", model.arch.linear_name(LinearId { layer, role }));
    }
    name.to_string()
}

/// Rows and columns; of a vector the number of its elements.
fn shape(view: &View) -> Vec<usize> {
    if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] }
}
