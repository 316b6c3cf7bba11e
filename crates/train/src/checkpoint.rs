//! A checkpoint: everything that a run needs to go on as if it had never stopped.
//!
//! ```text
//! checkpoints/step_N/  manifest.json  state.json  config.toml  weights.safetensors  optimizer.safetensors
//!     average.safetensors (of a run that keeps one)
//! ```
//!
//! It appears whole or not at all ([`DirWriter`]), and its manifest holds a checksum of each file. The order of the
//! data, the schedule and every random number are functions of the step, so that no generator has to be saved.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use planish_base::{Error, Kind, Result, TypeId};
use planish_compute::{Backend, View};
use planish_engine::{Engine, check_finite};
use planish_store::fs::{self, DirWriter, SealedDir};
use planish_store::safetensors::{self, Dtype, SafeTensors, TensorSpec};
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::identity::Identity;
use crate::numbered;
use crate::trainer::Trainer;
use crate::watch::{BestWatch, LossWatch};

/// The format's name and version, as the manifest has it.
pub const FORMAT: &str = "planish-checkpoint/1";

const STATE: &str = "state.json";
const CONFIG: &str = "config.toml";
const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const AVERAGE: &str = "average.safetensors";
/// Settings and state are small.
const TEXT_LIMIT: u64 = 1 << 20;

/// Where a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Steps done, skipped ones included.
    pub step: usize,
    /// Updates of the optimizer: its bias correction counts them.
    pub updates: u64,
    /// Passes over the data that are complete.
    pub epoch: usize,
    /// Sequences of the current pass that are used up.
    pub position: usize,
    /// Steps left out since their loss or gradient was not finite, and how many of them just now in a row.
    pub skipped: (usize, usize),
    /// Loss of the last step.
    pub last_loss: Option<f64>,
    /// Held-out loss before the first step: sum in nats, tokens.
    pub before: Option<(f64, u64)>,
    /// Losses of the steps.
    pub losses: LossWatch,
    /// Held-out losses.
    pub best: BestWatch,
}

/// A checkpoint on the disk that has been checked.
#[derive(Debug)]
pub struct Checkpoint {
    dir: SealedDir,
    /// Where the run was.
    pub state: State,
    /// What its numbers depend on.
    pub identity: Identity,
    /// Its settings.
    pub config: RunConfig,
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    state: State,
    identity: Identity,
}

impl Checkpoint {
    /// Writes a checkpoint to `path`; one that is there already is replaced.
    ///
    /// # Errors
    /// Kind `Diverged` for a value that is not finite; kind `Resource` when it cannot be written. Then nothing is left
    /// of it.
    pub fn save(
        path: &Path,
        engine: &Engine,
        trainer: &Trainer,
        config: &RunConfig,
        state: &State,
        identity: &Identity,
    ) -> Result<Checkpoint> {
        if fs::exists(path) {
            fs::remove_dir_all(path)?;
        }
        let file = StateFile { state: state.clone(), identity: identity.clone() };
        let text = serde_json::to_string_pretty(&file)
            .map_err(|e| Error::input("state", "the state cannot be stored").with_source(e))?;
        let mut writer = DirWriter::create(path)?;
        writer.file(STATE, |w| w.write_all(text.as_bytes()).map_err(fs::write_failed))?;
        let settings = config.to_toml()?;
        writer.file(CONFIG, |w| w.write_all(settings.as_bytes()).map_err(fs::write_failed))?;
        writer.file(WEIGHTS, |w| write_views(w, engine, &trainer.weights()))?;
        writer.file(OPTIMIZER, |w| write_views(w, engine, &trainer.slots()))?;
        let averages = trainer.averages();
        if !averages.is_empty() {
            writer.file(AVERAGE, |w| write_views(w, engine, &averages))?;
        }
        Self::read(writer.commit(FORMAT)?)
    }

    /// Opens and checks a checkpoint.
    ///
    /// # Errors
    /// Kind `Input`: incomplete, damaged, or of another version.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        Self::read(SealedDir::open(path, FORMAT)?).map_err(|e| e.in_file(path))
    }

    fn read(dir: SealedDir) -> Result<Checkpoint> {
        let broken =
            |name: &str, e: &dyn std::fmt::Display| Error::input("checkpoint", format!("{name}: {e}"));
        let file: StateFile =
            serde_json::from_slice(&dir.read(STATE, TEXT_LIMIT)?).map_err(|e| broken(STATE, &e))?;
        let text = String::from_utf8(dir.read(CONFIG, TEXT_LIMIT)?).map_err(|e| broken(CONFIG, &e))?;
        let config = toml::from_str(&text).map_err(|e| broken(CONFIG, &e.message()))?;
        Ok(Checkpoint { dir, state: file.state, identity: file.identity, config })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts weights, slots and the count of updates back.
    ///
    /// # Errors
    /// `checkpoint` when its tensors are not those of this run.
    pub fn restore(&self, engine: &mut Engine, trainer: &mut Trainer) -> Result<()> {
        let files =
            [(WEIGHTS, trainer.weights()), (OPTIMIZER, trainer.slots()), (AVERAGE, trainer.averages())];
        for (name, views) in files.into_iter().filter(|(_, views)| !views.is_empty()) {
            let file = SafeTensors::from_bytes(self.dir.bytes(name)?)?;
            read_views(&file, engine, &views).map_err(|e| e.in_file(&self.path().join(name)))?;
        }
        trainer.set_updates(self.state.updates);
        Ok(())
    }
}

/// The newest checkpoint that passes its checks, and why newer ones did not. None for a run without any.
///
/// # Errors
/// `checkpoint` when there are some and none passes; kind `Resource` for one that cannot be read.
pub fn latest(dir: &Path) -> Result<(Option<Checkpoint>, Vec<Error>)> {
    let mut refused = Vec::new();
    for (number, path) in numbered::list(dir, "")?.into_iter().rev() {
        match Checkpoint::open(&path) {
            Ok(c) if c.state.step == number => return Ok((Some(c), refused)),
            Ok(c) => {
                let message = format!("it is the checkpoint of step {} under another name", c.state.step);
                refused.push(Error::input("checkpoint", message).in_file(&path));
            }
            // One that cannot be read now may be good: going back behind it would lose it.
            Err(e) if e.kind() == Kind::Resource => return Err(e),
            Err(e) => refused.push(e),
        }
    }
    match refused.is_empty() {
        true => Ok((None, refused)),
        false => {
            let list: Vec<String> = refused.iter().map(ToString::to_string).collect();
            Err(Error::input("checkpoint", format!("no checkpoint can be used: {}", list.join("; ")))
                .with_hint("the weights in weights/ may still be good: start a new run with --init-adapter"))
        }
    }
}

/// Bytes of a checkpoint on the disk, a little more than it will have.
pub fn size(trainer: &Trainer) -> u64 {
    let views = [trainer.weights(), trainer.slots(), trainer.averages()].concat();
    let headers: u64 = views.iter().map(|(name, _)| name.len() as u64 + 128).sum();
    views.iter().map(|(_, v)| v.span()).sum::<u64>() + headers + TEXT_LIMIT
}

/// The type in files of what is trained, or of a slot.
fn dtype(v: &View) -> Dtype {
    match v.dtype {
        TypeId::F32 => Dtype::F32,
        TypeId::F64 => Dtype::F64,
        TypeId::I8 => Dtype::U8,
        _ => unreachable!("no slot is {}", v.dtype.name()),
    }
}

fn write_views(out: &mut dyn Write, engine: &Engine, views: &[(String, View)]) -> Result<()> {
    let spec = |(name, v): &(String, View)| (name.clone(), dtype(v), vec![v.rows, v.cols]);
    let specs: Vec<TensorSpec> = views.iter().map(spec).collect();
    let mut data = Vec::new();
    safetensors::write_to(out, &specs, &BTreeMap::new(), &mut |i, out| {
        let (name, view) = &views[i];
        data.resize(view.span() as usize, 0);
        engine.backend.download(view, &mut data);
        if view.dtype == TypeId::F32 {
            check_finite(name, &data).map_err(|e| e.with_kind(Kind::Diverged))?;
        }
        out.write_all(&data).map_err(fs::write_failed)
    })
}

fn read_views(file: &SafeTensors, engine: &mut Engine, views: &[(String, View)]) -> Result<()> {
    let bad = |what: String| Error::input("checkpoint", what);
    if file.len() != views.len() {
        return Err(bad(format!("{} tensors, the run has {}", file.len(), views.len())));
    }
    for (name, view) in views {
        let tensor = file.get(name).ok_or_else(|| bad(format!("tensor `{name}` is missing")))?;
        let expected = dtype(view);
        if tensor.dtype != expected || tensor.shape != [view.rows, view.cols] {
            let (rows, cols) = (view.rows, view.cols);
            let what = format!("tensor `{name}` is {} {:?}", tensor.dtype, tensor.shape);
            return Err(bad(format!("{what}, expected {expected} [{rows}, {cols}]")));
        }
        engine.backend.upload(view, tensor.data);
    }
    Ok(())
}
