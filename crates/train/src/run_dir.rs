//! What a run leaves behind:
//!
//! ```text
//! DIR/config.toml  events.jsonl  flow.json  weights/step_N.gguf  weights/latest -> step_N.gguf  peft/  Modelfile
//! ```

use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_compute::Program;
use planish_store::fs;
use serde_json::json;

use crate::config::TuneConfig;
use crate::events::{Events, SCHEMA};

/// The directory of one run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory and sees that it can be written.
    ///
    /// # Errors
    /// `run exists` when there is a run in it already; kind `Resource` when it cannot be written.
    pub fn create(path: &Path) -> Result<RunDir> {
        if fs::exists(&path.join("events.jsonl")) {
            return Err(Error::usage("run exists", format!("{}: there is a run already", path.display()))
                .with_hint("give another directory with --out"));
        }
        fs::create_dir_all(path)?;
        fs::check_writable_dir(path)?;
        fs::create_dir_all(&path.join("weights"))?;
        Ok(RunDir { path: path.to_path_buf() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weights of step N.
    pub fn weights(&self, step: usize) -> PathBuf {
        self.path.join("weights").join(format!("step_{step}.gguf"))
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
        fs::symlink_replace(&target, &self.path.join("weights/latest"))
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
    pub fn write_config(&self, config: &TuneConfig) -> Result<()> {
        let text = toml::to_string_pretty(config)
            .map_err(|e| Error::usage("config", "the configuration cannot be stored").with_source(e))?;
        self.write_text("config.toml", &text)
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

    /// Writes a small text file, whole or not at all.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write_text(&self, name: &str, text: &str) -> Result<()> {
        fs::write_atomic(&self.path.join(name), |w| w.write_all(text.as_bytes()).map_err(fs::write_failed))
    }
}
