//! A run that is to go on.

use std::path::Path;

use planish_base::Result;

use crate::checkpoint::{self, Checkpoint};
use crate::config::RunConfig;
use crate::run_dir::RunDir;

/// The directory of a run, held against other processes, and its newest checkpoint that passes all checks.
#[derive(Debug)]
pub struct Resumed {
    pub(crate) dir: RunDir,
    /// None for a run that was killed before its first one.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// What the user should know of what was found.
    pub(crate) warnings: Vec<String>,
    config: RunConfig,
}

impl Resumed {
    /// Opens the run in `path`, and removes what a killed process left unfinished.
    ///
    /// # Errors
    /// `no run` where there is none; `locked` while another process trains there; `checkpoint` where there are some and
    /// none passes; `config` for a broken file; kind `Resource` for what cannot be read or written.
    pub fn open(path: &Path) -> Result<Resumed> {
        let (dir, removed) = RunDir::open(path)?;
        let (checkpoint, refused) = checkpoint::latest(&dir.checkpoints())?;
        let removed = removed.iter().map(|p| format!("removed {}, which was left unfinished", p.display()));
        let refused = refused.iter().map(|e| format!("checkpoint left out: {e}"));
        let mut warnings: Vec<String> = removed.chain(refused).collect();
        let config = match &checkpoint {
            Some(c) => c.config.clone(),
            None => {
                warnings.push("the run has no checkpoint yet: it begins at its first step".to_string());
                dir.config()?
            }
        };
        Ok(Resumed { dir, checkpoint, warnings, config })
    }

    /// The settings of the newest checkpoint, or before there is one those that the run was begun with.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }
}
