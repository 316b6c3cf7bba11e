//! What a run leaves behind:
//!
//! ```text
//! DIR/config.toml  events.jsonl  flow.json  weights/step_N.gguf  weights/latest -> step_N.gguf  weights/best.gguf
//!     weights/ema.gguf  checkpoints/step_N/  peft/  Modelfile  lock  stdin.jsonl or stdin.txt  init.gguf
//! ```

use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_compute::Program;
use planish_store::fs::{self, Lock};
use planish_text::source::is_lines;
use serde_json::json;

use crate::config::RunConfig;
use crate::events::{Events, SCHEMA};
use crate::numbered;

/// The directory of one run, which no other process can train in as long as this lives.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: Lock,
}

/// The file by which a run is known.
const CONFIG: &str = "config.toml";
/// A larger one is not a configuration.
const CONFIG_LIMIT: u64 = 1 << 20;

impl RunDir {
    /// Makes the directory and sees that it can be written.
    ///
    /// # Errors
    /// `run exists` when there is a run in it already; `locked` when another process trains in it; kind `Resource`
    /// when it cannot be written.
    pub fn create(path: &Path) -> Result<RunDir> {
        fs::create_dir_all(path)?;
        let lock = Lock::acquire(&path.join("lock"))?;
        if fs::exists(&path.join("events.jsonl")) {
            return Err(Error::usage("run exists", format!("{}: there is a run already", path.display()))
                .with_hint("give another directory with --out, or go on with this run: --resume"));
        }
        Self::with_lock(path, lock)
    }

    /// Opens the directory of a run that is to go on, and removes what a killed process left unfinished; its paths are
    /// returned.
    ///
    /// # Errors
    /// `no run`; `locked`; kind `Resource` when it cannot be written.
    pub fn open(path: &Path) -> Result<(RunDir, Vec<PathBuf>)> {
        if !fs::exists(&path.join(CONFIG)) {
            return Err(Error::input("no run", format!("{}: there is no run", path.display()))
                .with_hint("give the directory of a run, which holds its config.toml"));
        }
        let lock = Lock::acquire(&path.join("lock"))?;
        let dir = Self::with_lock(path, lock)?;
        let mut removed = Vec::new();
        for folder in [dir.path.clone(), dir.weights_dir(), dir.checkpoints()] {
            removed.extend(fs::remove_leftovers(&folder)?);
        }
        Ok((dir, removed))
    }

    fn with_lock(path: &Path, lock: Lock) -> Result<RunDir> {
        fs::check_writable_dir(path)?;
        let dir = RunDir { path: path.to_path_buf(), _lock: lock };
        fs::create_dir_all(&dir.weights_dir())?;
        fs::create_dir_all(&dir.checkpoints())?;
        Ok(dir)
    }

    /// The settings that the run was begun or gone on with last.
    ///
    /// # Errors
    /// `config` for a broken file.
    pub fn config(&self) -> Result<RunConfig> {
        let file = self.path.join(CONFIG);
        let text = fs::read_text_bounded(&file, CONFIG_LIMIT)?;
        toml::from_str(&text)
            .map_err(|e| Error::input("config", format!("{}: {}", file.display(), e.message())))
    }

    /// The newest run in `runs`, by its log.
    ///
    /// # Errors
    /// `no run`.
    pub fn newest(runs: &Path) -> Result<PathBuf> {
        let none = || {
            Error::usage("no run", format!("{}: there is no run to go on with", runs.display()))
                .with_hint("name the directory of the run: --resume RUN")
        };
        let found = if fs::is_dir(runs) { fs::list_dir(runs)? } else { Vec::new() };
        let dated = found.into_iter().filter_map(|p| Some((fs::modified(&p.join("events.jsonl"))?, p)));
        dated.max().map(|(_, path)| path).ok_or_else(none)
    }

    /// The checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The checkpoint of step N.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        self.checkpoints().join(format!("step_{step}"))
    }

    fn weights_dir(&self) -> PathBuf {
        self.path.join("weights")
    }

    /// The weights of the lowest held-out loss.
    pub fn best(&self) -> PathBuf {
        self.weights_dir().join("best.gguf")
    }

    /// The average of the weights at the newest checkpoint.
    pub fn average(&self) -> PathBuf {
        self.weights_dir().join("ema.gguf")
    }

    /// Removes checkpoints and weights of steps up to `step` but for the `keep` newest. A checkpoint disappears at once:
    /// a torn one must not be left behind.
    ///
    /// # Errors
    /// Kind `Resource` when one cannot be removed.
    pub fn remove_old(&self, step: usize, keep: usize) -> Result<()> {
        let checkpoints = numbered::old(&self.checkpoints(), "", step, keep)?;
        checkpoints.iter().try_for_each(|path| fs::remove_dir_all(path))?;
        let weights = numbered::old(&self.weights_dir(), ".gguf", step, keep)?;
        weights.iter().try_for_each(|path| fs::remove_file(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weights of step N.
    pub fn weights(&self, step: usize) -> PathBuf {
        self.weights_dir().join(format!("step_{step}.gguf"))
    }

    /// The PEFT directory of the latest step.
    pub fn peft(&self) -> PathBuf {
        self.path.join("peft")
    }

    /// Points `weights/latest` to step N.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn set_latest(&self, step: usize) -> Result<()> {
        let target = PathBuf::from(format!("step_{step}.gguf"));
        fs::symlink_replace(&target, &self.weights_dir().join("latest"))
    }

    /// Refuses to write `needed` bytes where not so many are free.
    ///
    /// # Errors
    /// `disk full`, with both numbers.
    pub fn check_space(&self, needed: u64) -> Result<()> {
        match fs::free_bytes(&self.path) {
            Some(free) if free < needed => {
                let mb = |b: u64| b / 1_000_000;
                let message = format!("writing needs {} MB, {} MB are free", mb(needed), mb(free));
                Err(Error::resource("disk full", message)
                    .in_file(&self.path)
                    .with_hint("free some space, or choose a place on another disk with --out"))
            }
            _ => Ok(()),
        }
    }

    /// Opens the log of events.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn events(&self) -> Result<Events> {
        Events::create(&self.path.join("events.jsonl"))
    }

    /// Writes the resolved configuration.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write_config(&self, config: &RunConfig) -> Result<()> {
        self.write_text(CONFIG, &config.to_toml()?)
    }

    /// Writes the calls of one training pass as nodes.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write_flow(&self, program: &Program) -> Result<()> {
        let mut nodes = Vec::new();
        for (i, call) in program.calls().iter().enumerate() {
            call.visit(&mut |_| {}, &mut |v| {
                nodes.push(json!({
                    "name": format!("{}.{}", i, call.name()), "role": "ephemeral", "op": call.name(),
                    "shape": format!("{}×{}", v.rows, v.cols), "dtype": v.dtype.name(),
                    "nelements": v.elements(), "nbytes": v.span(),
                }));
            });
        }
        let summary = json!({"n_leafs": 0, "n_nodes": nodes.len()});
        let flow = json!({"format": SCHEMA, "nodes": nodes, "summary": summary});
        self.write_text("flow.json", &flow.to_string())
    }

    /// Writes what standard input held, under the extension of its shape, and gives its absolute path.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write_stdin(&self, bytes: &[u8]) -> Result<PathBuf> {
        let name = if is_lines(bytes) { "stdin.jsonl" } else { "stdin.txt" };
        let path = self.path.join(name);
        fs::write_atomic(&path, |w| w.write_all(bytes).map_err(fs::write_failed))?;
        Ok(fs::absolute(&path))
    }

    /// Writes a small text file, whole or not at all.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write_text(&self, name: &str, text: &str) -> Result<()> {
        fs::write_atomic(&self.path.join(name), |w| w.write_all(text.as_bytes()).map_err(fs::write_failed))
    }
}
