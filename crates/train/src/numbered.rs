//! What a folder of a run holds for each step: `step_N`, or `step_N.gguf`.

use std::path::{Path, PathBuf};

use planish_base::Result;
use planish_store::fs;

/// The entries `step_N` with this suffix, by ascending N; none where there is no folder. A number has one spelling.
pub(crate) fn list(dir: &Path, suffix: &str) -> Result<Vec<(usize, PathBuf)>> {
    if !fs::exists(dir) {
        return Ok(Vec::new());
    }
    let number = |p: &PathBuf| -> Option<usize> {
        let name = p.file_name()?.to_str()?;
        let number = name.strip_prefix("step_")?.strip_suffix(suffix)?.parse().ok()?;
        (name == format!("step_{number}{suffix}")).then_some(number)
    };
    let mut found: Vec<(usize, PathBuf)> =
        fs::list_dir(dir)?.into_iter().filter_map(|p| Some((number(&p)?, p))).collect();
    found.sort();
    Ok(found)
}

/// All entries up to `step` but for the `keep` newest.
pub(crate) fn old(dir: &Path, suffix: &str, step: usize, keep: usize) -> Result<Vec<PathBuf>> {
    let mut entries = list(dir, suffix)?;
    entries.retain(|(n, _)| *n <= step);
    entries.truncate(entries.len().saturating_sub(keep));
    Ok(entries.into_iter().map(|(_, path)| path).collect())
}
