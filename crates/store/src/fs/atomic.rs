//! Files and directories that appear complete or not at all.
//!
//! A temporary with an unguessable name is created exclusively beside the target (another file system could not be
//! renamed from), filled, synced, renamed over the target, and the directory is synced, so that the order in which a
//! power loss may drop writes never shows a torn file. What a killed process leaves behind is a name that begins with
//! a dot and holds `.tmp-`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::{create_dir_all, io_error, list_dir};
use crate::{Error, Result};

const BUFFER: usize = 1 << 20;

/// Writes a file atomically: after success `path` holds exactly what `fill` wrote and it is on the disk; after an
/// error `path` is as it was and the temporary is gone. A symbolic link at `path` is replaced, not followed.
///
/// `fill` turns its own write errors into the house's with [`write_failed`](super::write_failed).
pub fn write_atomic(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let parent = parent(path)?;
    // Renaming over an empty directory would work and surprise.
    if path.is_dir() && !path.is_symlink() {
        return Err(Error::input("not a file", "is a directory, expected a file to write").in_file(path));
    }
    let failed = |e| io_error(path, "write", e);
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    #[cfg(unix)]
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666);
    // The umask applies, as for any new file; the default of the crate would hide the file from other users.
    #[cfg(unix)]
    builder.permissions(mode);
    let temporary = builder.tempfile_in(parent).map_err(failed)?;
    {
        let mut buffered = BufWriter::with_capacity(BUFFER, temporary.as_file());
        fill(&mut buffered).map_err(|e| e.at(format_args!("while writing {}", path.display())))?;
        buffered.flush().map_err(failed)?;
    }
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    sync_dir(parent)
}

/// Writes a directory atomically: `fill` gets an empty temporary directory; its files are synced and it is renamed to
/// `path`, which must not exist (an empty directory is replaced). After an error `path` is as it was.
pub fn write_dir_atomic(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = parent(path)?;
    let failed = |e| io_error(path, "write the directory", e);
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    #[cfg(unix)]
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    #[cfg(unix)]
    builder.permissions(mode);
    let temporary = builder.tempdir_in(parent).map_err(failed)?;
    fill(temporary.path()).map_err(|e| e.at(format_args!("while writing {}", path.display())))?;
    sync_tree(temporary.path())?;
    std::fs::rename(temporary.path(), path).map_err(failed)?;
    // It has moved: nothing is left to remove.
    let _ = temporary.keep();
    sync_dir(parent)
}

/// Makes `link` a symbolic link to `target` (taken as it is, relative to the link's directory), atomically replacing
/// a link or file of that name.
pub fn symlink_replace(target: &Path, link: &Path) -> Result<()> {
    let parent = parent(link)?;
    let failed = |e| io_error(link, "make the link", e);
    let made = tempfile::Builder::new()
        .prefix(&prefix(link))
        .make_in(parent, |temporary| make_symlink(target, temporary))
        .map_err(failed)?;
    made.into_temp_path().persist(link).map_err(|e| failed(e.error))?;
    sync_dir(parent)
}

/// Creates the directory if need be and proves that files can be written there.
pub fn check_writable_dir(path: &Path) -> Result<()> {
    create_dir_all(path)?;
    let probe = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".probe.tmp-").tempfile_in(path)?;
        file.write_all(b"x")?;
        file.close()
    };
    probe().map_err(|e| io_error(path, "write into the directory", e))
}

#[cfg(unix)]
fn make_symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn make_symlink(_target: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn parent(path: &Path) -> Result<&Path> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(_)) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        (Some(parent), Some(_)) => Ok(parent),
        _ => Err(Error::input("not a file", "has no file name").in_file(path)),
    }
}

fn prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".tmp-");
    prefix
}

fn sync_tree(dir: &Path) -> Result<()> {
    for path in list_dir(dir)? {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            File::open(&path).and_then(|f| f.sync_all()).map_err(|e| io_error(&path, "sync", e))?;
        }
    }
    sync_dir(dir)
}

/// Makes renames and new names in a directory durable.
fn sync_dir(dir: &Path) -> Result<()> {
    // Other systems do not open directories as files, and order these operations themselves.
    if cfg!(unix) {
        File::open(dir).and_then(|f| f.sync_all()).map_err(|e| io_error(dir, "sync the directory", e))?;
    }
    Ok(())
}
