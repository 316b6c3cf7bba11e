//! One process at a time.
#![forbid(unsafe_code)]

use std::fs::TryLockError;
use std::path::Path;

use super::{disk, io_error};
use crate::{Error, Result};

/// An exclusive lock on a file, released when this is dropped or the process ends, however it ends. The file stays:
/// removing it would let two processes lock two files of one name.
#[derive(Debug)]
pub struct Lock {
    /// Closing it releases the lock.
    _file: disk::Output,
}

impl Lock {
    /// Locks `path`, making the file if it is absent. Does not wait.
    ///
    /// Errors, all but those of a wrong path of kind `Resource`: `locked` if another process holds it, `no locks` if
    /// the file system has none, and those of opening.
    pub fn acquire(path: &Path) -> Result<Lock> {
        let file = disk::Output::append(path).map_err(|e| io_error(path, "open the lock", e))?;
        match file.file().try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::resource("locked", "is locked by another process")
                .in_file(path)
                .with_hint("another process uses this directory; wait for it, or choose another directory")),
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {
                Err(Error::resource("no locks", format!("cannot lock: {e}"))
                    .in_file(path)
                    .with_hint("this file system has no locks; choose a place on another")
                    .with_source(e))
            }
            Err(TryLockError::Error(e)) => Err(io_error(path, "lock", e)),
        }
    }
}
