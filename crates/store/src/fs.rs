//! The file system: bounded reads, atomic writes, append-only logs, hashes.
//!
//! Errors carry the path. What is absent or of the wrong sort is [`Kind::Input`]; a full disk, a missing permission
//! and a failing device are [`Kind::Resource`].
#![forbid(unsafe_code)]
// The lint sends every other module here; somebody has to call std::fs.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::io;
use std::path::Path;

use crate::{Error, Kind, Result};

/// Opens a regular file for reading and gives its length in bytes.
///
/// Errors: `not found`, `not a file` (a directory, pipe, socket or device: some of these never end), `permission`.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    // Asked before opening: opening a pipe waits for its other end.
    let before = std::fs::metadata(path).map_err(|e| io_error(path, "open", e))?;
    if !before.is_file() {
        let what = if before.is_dir() { "a directory" } else { "not a regular file" };
        return Err(Error::input("not a file", format!("is {what}, expected a file")).in_file(path));
    }
    let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
    let len = file.metadata().map_err(|e| io_error(path, "open", e))?.len();
    Ok((file, len))
}

/// The house's error for a failed operation `verb` on `path`.
pub(crate) fn io_error(path: &Path, verb: &str, e: io::Error) -> Error {
    use io::ErrorKind as K;
    let (kind, code, hint) = match e.kind() {
        K::NotFound => (Kind::Input, "not found", Some("check the path")),
        K::IsADirectory => (Kind::Input, "not a file", None),
        K::NotADirectory => (Kind::Input, "not a directory", Some("a part of the path is a file")),
        K::PermissionDenied => {
            (Kind::Resource, "permission", Some("check the permissions of the file and of its directory"))
        }
        K::ReadOnlyFilesystem => {
            (Kind::Resource, "read only", Some("the file system is mounted read-only; choose another place"))
        }
        K::StorageFull | K::QuotaExceeded => {
            (Kind::Resource, "disk full", Some("free some space, or choose a place on another disk"))
        }
        K::FileTooLarge => {
            (Kind::Resource, "file too large", Some("a limit of the process or of the file system was met"))
        }
        _ => (Kind::Resource, "io", None),
    };
    let error = Error::new(kind, code, format!("cannot {verb}: {e}")).in_file(path).with_source(e);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}
