//! Files and directories that appear complete or not at all.
//!
//! A temporary with an unguessable name is created exclusively beside the target (another file system could not be
//! renamed from), filled, synced, renamed over the target, and the directory is synced, so that the order in which a
//! power loss may drop writes never shows a torn file. What a killed process leaves behind is a name that begins with
//! a dot and holds `.tmp-`; [`remove_leftovers`](super::remove_leftovers) removes it.
#![forbid(unsafe_code)]

use std::io::{BufWriter, Write};
use std::path::Path;

use super::disk::{self, Output};
use super::temporary::{Temporary, parent};
use super::{create_dir_all, in_place, io_error, list_dir};
use crate::{Error, Result};

/// Bytes gathered before they are written.
pub(super) const BUFFER: usize = 1 << 20;

/// Writes a file atomically: after success `path` holds exactly what `fill` wrote and it is on the disk; after an
/// error `path` is as it was and the temporary is gone. If the last step failed, making the new name durable, `path`
/// holds the new content and a power loss may bring back the old. A symbolic link at `path` is replaced, not followed.
///
/// `fill` turns its own write errors into the house's with [`write_failed`](super::write_failed).
pub fn write_atomic(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let parent = parent(path)?;
    // Renaming over an empty directory would work and surprise.
    if path.is_dir() && !path.is_symlink() {
        return Err(Error::input("not a file", "is a directory, expected a file to write").in_file(path));
    }
    let failed = |e| io_error(path, "write", e);
    let (mut temporary, output) = Temporary::beside(path, Output::create_new).map_err(failed)?;
    let mut buffered = BufWriter::with_capacity(BUFFER, output);
    fill(&mut buffered).map_err(|e| in_place(e, path, "while writing "))?;
    let output = buffered.into_inner().map_err(|e| failed(e.into_error()))?;
    output.sync().map_err(failed)?;
    drop(output);
    temporary.put_in_place(path).map_err(failed)?;
    sync_dir(parent)
}

/// Writes a directory atomically: `fill` gets an empty temporary directory; its files are synced and it is renamed to
/// `path`, which must not exist (an empty directory is replaced). After an error `path` is as it was, but for the last
/// step, as in [`write_atomic`].
///
/// For directories that another program defines. Where the format is ours, [`DirWriter`](super::DirWriter) also hashes.
pub fn write_dir_atomic(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = parent(path)?;
    let failed = |e| io_error(path, "write the directory", e);
    let (mut temporary, ()) = Temporary::beside(path, disk::make_dir).map_err(failed)?;
    fill(temporary.path()).map_err(|e| in_place(e, path, "while writing "))?;
    sync_tree(temporary.path())?;
    temporary.put_in_place(path).map_err(failed)?;
    sync_dir(parent)
}

/// Makes `link` a symbolic link to `target` (taken as it is, relative to the link's directory), atomically replacing
/// a link or file of that name.
pub fn symlink_replace(target: &Path, link: &Path) -> Result<()> {
    let parent = parent(link)?;
    let failed = |e| io_error(link, "make the link", e);
    let (mut temporary, ()) =
        Temporary::beside(link, |temporary| disk::symlink(target, temporary)).map_err(failed)?;
    temporary.put_in_place(link).map_err(failed)?;
    sync_dir(parent)
}

/// Creates the directory if need be and proves that files can be written there.
pub fn check_writable_dir(path: &Path) -> Result<()> {
    create_dir_all(path)?;
    let probe = || {
        let (_removed_at_the_end, mut file) = Temporary::beside(&path.join("probe"), Output::create_new)?;
        file.write_all(b"x")
    };
    probe().map_err(|e| io_error(path, "write into the directory", e))
}

fn sync_tree(dir: &Path) -> Result<()> {
    for path in list_dir(dir)? {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            disk::sync_file(&path).map_err(|e| io_error(&path, "sync", e))?;
        }
    }
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> Result<()> {
    disk::sync_dir(dir).map_err(|e| io_error(dir, "sync the directory", e))
}
