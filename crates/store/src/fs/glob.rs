//! Paths that stand for several files, as a shell would have written them out: `data/*.txt`, `data/**/*.jsonl`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern, glob_with};

use super::exists;
use crate::{Error, Kind, Result};

/// Files that one pattern may stand for: more is a pattern that went wrong.
const MOST: usize = 1_000_000;

/// Hidden names are named on purpose or not meant, as in a shell.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// The files that `path` stands for: itself where it is there or is no pattern, else every regular file that the
/// pattern matches, sorted. `*` and `?` match within a name, `[ab]` one of several characters, `**` any directories;
/// names that begin with a dot match only a dot. What is absent and no pattern is left for the reader to refuse.
///
/// # Errors
/// `pattern` for one that is wrong, or that matches nothing, or more than a million files; kind `Resource` for a
/// directory that cannot be read.
pub fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(text) = pattern(path) else { return Ok(vec![path.to_path_buf()]) };
    let refused = |why: String| Error::input("pattern", why).in_file(path);
    let found = glob_with(text, OPTIONS).map_err(|e| refused(format!("is not a pattern: {e}")))?;
    let mut files = Vec::new();
    for entry in found {
        let file = entry.map_err(|e| {
            Error::new(Kind::Resource, "permission", format!("cannot be read: {}", e.error()))
                .in_file(e.path())
        })?;
        if file.is_file() {
            files.push(file);
        }
        if files.len() > MOST {
            return Err(refused(format!("matches more than {MOST} files")));
        }
    }
    if files.is_empty() {
        return Err(refused("matches no file".into()).with_hint(
            "`*` matches within a name and `**` any directories; check the path, or name the files",
        ));
    }
    files.sort();
    Ok(files)
}

/// The path from the root, so that it means the same wherever it is read again. A pattern stays one, and what stands
/// before it does not become part of it.
pub fn absolute(path: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match pattern(path) {
        Some(text) if path.is_relative() => {
            let here = absolute(Path::new("."));
            Path::new(&Pattern::escape(&here.to_string_lossy())).join(text)
        }
        _ => absolute(path),
    }
}

/// The text of a path that is a pattern: a file that is there wins.
fn pattern(path: &Path) -> Option<&str> {
    let text = path.to_str().filter(|t| t.contains(['*', '?', '[']));
    if exists(path) { None } else { text }
}
