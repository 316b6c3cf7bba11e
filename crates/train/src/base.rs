//! The model that a run begins with: one that is there, or a new one.

use planish_base::Result;
use planish_engine::Model;
use planish_store::fs::Drafts;

use crate::config::RunConfig;
use crate::run_dir::RunDir;
use crate::scratch::{self, NewModel};
use crate::tune::Start;

/// The name of a new model's first file.
const FILE: &str = "init.gguf";

/// A model to begin with.
pub(crate) struct Base {
    /// What it is.
    pub model: Model,
    /// What was made, where it is new.
    pub made: Option<NewModel>,
    /// Where its file waits for the run's directory.
    pub drafts: Option<Drafts>,
}

impl Base {
    /// Opens the base of `config`, or makes the new model that a run begins with; `config` then names it.
    ///
    /// # Errors
    /// Those of [`scratch::create`] and [`Model::open`].
    pub fn open(config: &mut RunConfig, start: &Start) -> Result<Base> {
        if config.model.is_some() {
            // Also of a run that goes on: its directory may have been moved.
            config.base = start.out().join(FILE);
        }
        let new = config.model.as_ref().filter(|_| !matches!(start, Start::Resume { .. }));
        let Some(shape) = new else {
            return Ok(Base { model: Model::open(&config.base)?, made: None, drafts: None });
        };
        let drafts = Drafts::beside(start.out())?;
        let made = scratch::create(config, shape, &drafts.path(FILE))?;
        let model = Model::open(&drafts.path(FILE))?;
        Ok(Base { model, made: Some(made), drafts: Some(drafts) })
    }
}

/// Puts the file of a new model into the run's directory.
///
/// # Errors
/// Kind `Resource` when it cannot be moved.
pub(crate) fn keep(drafts: Option<Drafts>, dir: &RunDir) -> Result<()> {
    drafts.map_or(Ok(()), |drafts| drafts.place(FILE, &dir.path().join(FILE)))
}
