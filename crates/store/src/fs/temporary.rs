//! Temporaries: what is being written, under a name that says so, beside the place it will take.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)]

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use super::{disk, io_error, list_dir};
use crate::{Error, Result};

/// Between the name of the target and a random part.
const MARK: &str = ".tmp-";

/// Names tried before giving up. One is enough unless somebody guesses them.
const TRIES: u32 = 64;

/// A file, link or directory `.NAME.tmp-RANDOM` of this process, removed when dropped unless it has taken its place.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    in_place: bool,
}

impl Temporary {
    /// Beside `target`, since another file system could not be renamed from. `make` must fail on a name that exists.
    pub fn beside<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Temporary, T)> {
        for _ in 0..TRIES {
            let path = parent_or_dot(target).join(name_for(target));
            match make(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok((Temporary { path, in_place: false }, made?)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the name `target`; what bears it now is replaced if it is a file or an empty directory.
    pub fn put_in_place(&mut self, target: &Path) -> io::Result<()> {
        disk::rename(&self.path, target)?;
        self.in_place = true;
        Ok(())
    }

    /// Undoes [`put_in_place`](Self::put_in_place).
    pub fn take_back(&mut self, target: &Path) -> io::Result<()> {
        disk::rename(target, &self.path)?;
        self.in_place = false;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.in_place {
            // What cannot be removed now is a left-over, which the next process removes.
            let _ = disk::remove_tree(&self.path);
        }
    }
}

/// A directory for files that will take their places together, beside `target`. What is still in it when it is dropped
/// is removed with it.
#[derive(Debug)]
pub struct Drafts(Temporary);

impl Drafts {
    /// Makes the directory: where `target` will be, or as near as there is a directory already.
    pub fn beside(target: &Path) -> Result<Drafts> {
        let there = target.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
        let near = there.join(target.file_name().unwrap_or_default());
        let made = Temporary::beside(&near, |path| std::fs::create_dir(path));
        made.map(|(temporary, ())| Drafts(temporary)).map_err(|e| io_error(target, "make a draft beside", e))
    }

    /// Where the draft of this name is written.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a draft in its place, on the same file system.
    pub fn place(&self, name: &str, target: &Path) -> Result<()> {
        disk::rename(&self.path(name), target).map_err(|e| io_error(target, "put in place", e))
    }
}

/// Removes what killed processes left in `dir` while they wrote there: entries named `.NAME.tmp-*`. Gives their paths.
///
/// Only for the holder of the [`Lock`](super::Lock) of the directory: another process may be writing its own.
pub fn remove_leftovers(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = list_dir(dir)?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') && name.contains(MARK)
    });
    for path in &paths {
        disk::remove_tree(path).map_err(|e| io_error(path, "remove the left-over", e))?;
    }
    Ok(paths)
}

/// A random, hidden name that says whose it is.
pub(super) fn name_for(target: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    // Keys of the standard hasher come from the system's random numbers and differ from one to the next.
    let random = RandomState::new().hash_one(std::process::id());
    name.push(format!("{MARK}{random:016x}"));
    name
}

/// The directory that holds `path`, which must end in a name.
pub(super) fn parent(path: &Path) -> Result<&Path> {
    match path.file_name() {
        Some(_) => Ok(parent_or_dot(path)),
        None => Err(Error::input("not a file", "has no file name").in_file(path)),
    }
}

pub(super) fn parent_or_dot(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
