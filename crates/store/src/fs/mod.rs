//! The file system: bounded reads, atomic writes, sealed directories, append-only logs, locks, hashes. The only place
//! that calls `std::fs`; calls that change the disk are all in `disk`.
//!
//! Errors carry the path. What is absent or of the wrong sort is [`Kind::Input`]; a full disk, a missing permission
//! and a failing device are [`Kind::Resource`].
#![forbid(unsafe_code)]
// The lint sends every other module here; somebody has to call std::fs.
#![allow(clippy::disallowed_methods)]

mod atomic;
mod dir_writer;
mod disk;
#[cfg(all(unix, feature = "faults"))]
pub mod faults;
mod glob;
mod lines;
mod lock;
mod log;
mod manifest;
mod sealed;
mod space;
mod stdin;
mod temporary;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{Error, Kind, Result};

pub use atomic::{check_writable_dir, symlink_replace, write_atomic, write_dir_atomic};
pub use dir_writer::DirWriter;
pub use glob::{absolute, expand};
pub use lines::Lines;
pub use lock::Lock;
pub use log::AppendLog;
pub use sealed::SealedDir;
pub use space::free_bytes;
pub use stdin::read_stdin;
pub use temporary::{Drafts, remove_leftovers};

/// Reads a file of at most `limit` bytes.
///
/// Errors: `too large`, and those of opening and reading.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, len) = open_regular(path)?;
    let mut bytes = Vec::new();
    // One byte more than allowed, since a file may have grown after its length was asked.
    if len <= limit {
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| io_error(path, "read", e))?;
    }
    if len > limit || bytes.len() as u64 > limit {
        let message = format!("has {} bytes, at most {limit} are allowed", len.max(bytes.len() as u64));
        return Err(Error::input("too large", message).in_file(path));
    }
    Ok(bytes)
}

/// Reads a UTF-8 text file of at most `limit` bytes; a byte order mark is dropped.
///
/// Errors: `utf-8` with the byte offset, and those of [`read_bounded`].
pub fn read_text_bounded(path: &Path, limit: u64) -> Result<String> {
    let mut text = String::from_utf8(read_bounded(path, limit)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::input("utf-8", format!("byte {at}: the text is not UTF-8")).in_file(path)
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Creates a directory and its parents, durably; one that exists is fine. Whatever stands in the way is of kind
/// `Resource`: the path is where something is to be written.
pub fn create_dir_all(path: &Path) -> Result<()> {
    let failed = |e| io_error(path, "create the directory", e).with_kind(Kind::Resource);
    disk::make_dir_all(path).map_err(failed)
}

/// Whether something is there. A dangling symbolic link is not, and neither is what may not be asked about.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// Whether a directory is there.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// Length of a file in bytes.
pub fn file_len(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).map_err(|e| io_error(path, "look at", e))?.len())
}

/// When a file was last written; none for one that is not there.
pub fn modified(path: &Path) -> Option<std::time::SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// The paths of all entries of a directory, sorted by name, hidden ones too.
pub fn list_dir(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| io_error(path, "list", e);
    let entries = std::fs::read_dir(path).map_err(failed)?;
    let mut paths = entries.map(|e| e.map(|e| e.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

/// Removes a file; an absent one is an error.
pub fn remove_file(path: &Path) -> Result<()> {
    disk::remove_file(path).map_err(|e| io_error(path, "remove", e))
}

/// Removes a directory with all that is in it. Symbolic links are removed, not followed.
///
/// It first loses its name, durably, so that neither a kill nor a power loss shows half of it under that name; what
/// they may leave is a left-over for [`remove_leftovers`].
pub fn remove_dir_all(path: &Path) -> Result<()> {
    let failed = |e| io_error(path, "remove", e);
    if !std::fs::symlink_metadata(path).map_err(failed)?.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let parent = temporary::parent(path)?;
    let aside = parent.join(temporary::name_for(path));
    disk::rename(path, &aside).map_err(failed)?;
    disk::sync_dir(parent).and_then(|()| disk::remove_tree(&aside)).map_err(failed)
}

/// The SHA-256 of bytes, in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// The SHA-256 of a file, in lower-case hexadecimal. The file is streamed.
pub fn sha256_file(path: &Path) -> Result<String> {
    let (file, _) = open_regular(path)?;
    Hasher::of_file(file, path)
}

/// SHA-256 of what comes in pieces.
struct Hasher(Sha256);

impl Hasher {
    fn new() -> Hasher {
        Hasher(Sha256::new())
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> String {
        format!("{:x}", self.0.finalize())
    }

    fn of_file(file: File, path: &Path) -> Result<String> {
        let mut hash = Sha256::new();
        let mut reader = BufReader::with_capacity(1 << 16, file);
        io::copy(&mut reader, &mut hash).map_err(|e| io_error(path, "read", e))?;
        Ok(Hasher(hash).finish())
    }
}

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

/// The error for a write that failed within a `fill` of [`write_atomic`], which adds the path.
pub fn write_failed(e: io::Error) -> Error {
    classify("write", e)
}

/// The error for a failed operation `verb` on `path`.
pub(crate) fn io_error(path: &Path, verb: &str, e: io::Error) -> Error {
    in_place(classify(verb, e), path, "")
}

/// Puts the path before the message, after `doing`, and says how much room a full disk has.
fn in_place(error: Error, path: &Path, doing: &str) -> Error {
    let free = if error.code() == "disk full" { free_bytes(path) } else { None };
    let free = free.map_or(String::new(), |free| format!(" ({free} bytes are free there)"));
    error.at(format_args!("{doing}{}{free}", path.display()))
}

fn classify(verb: &str, e: io::Error) -> Error {
    use io::ErrorKind as K;
    let (kind, code, hint) = match e.kind() {
        K::NotFound => (Kind::Input, "not found", "check the path"),
        K::IsADirectory => (Kind::Input, "not a file", "the path is a directory; give a file"),
        K::NotADirectory => (Kind::Input, "not a directory", "a part of the path is a file"),
        K::AlreadyExists | K::DirectoryNotEmpty => {
            (Kind::Input, "exists", "remove what is there, or choose another name")
        }
        K::PermissionDenied => {
            (Kind::Resource, "permission", "check the permissions of the file and of its directory")
        }
        K::ReadOnlyFilesystem => {
            (Kind::Resource, "read only", "the file system is mounted read-only; choose another place")
        }
        K::StorageFull | K::QuotaExceeded => {
            (Kind::Resource, "disk full", "free some space, or choose a place on another disk")
        }
        K::FileTooLarge => {
            (Kind::Resource, "file too large", "a limit of the process or of the file system was met")
        }
        _ => (Kind::Resource, "io", "the operating system refused; the device may be failing"),
    };
    Error::new(kind, code, format_args!("cannot {verb}: {e}")).with_hint(hint).with_source(e)
}
