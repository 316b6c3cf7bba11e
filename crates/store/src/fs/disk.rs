//! Every system call of this crate that changes the disk, each in a function of its own.
//!
//! One place, so that tests can make the n-th call fail, cut it short or die at it, and can write down all calls to
//! work out what a power loss may leave behind. A build without the feature `faults` holds none of that.
//!
//! A call that a signal interrupts is made again. Any other failure is handed up at once, of `fsync` above all: after
//! a failed `fsync` the system may drop the data and report the next one as a success.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::temporary::parent_or_dot;

#[cfg(all(unix, feature = "faults"))]
use super::faults::call;

/// What a system call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a directory.
    MakeDir,
    /// Makes a file that was not there.
    Create,
    /// Opens a file for appending, making it if it is absent.
    Append,
    /// Writes at the end of a file.
    Write,
    /// Waits until the content of a file is on the disk.
    SyncFile,
    /// Waits until the names in a directory are on the disk.
    SyncDir,
    /// Gives a file or directory another name.
    Rename,
    /// Makes a symbolic link.
    Symlink,
    /// Removes the name of a file or link.
    RemoveFile,
    /// Removes an empty directory.
    RemoveDir,
}

/// One system call and what it is about.
#[derive(Clone, Copy)]
#[cfg_attr(not(all(unix, feature = "faults")), allow(dead_code, reason = "only tests look into it"))]
pub(super) struct Op<'a> {
    pub call: Call,
    pub path: &'a Path,
    /// Where a rename leads, or what a link names.
    pub other: Option<&'a Path>,
    /// What a write writes.
    pub bytes: &'a [u8],
}

impl<'a> Op<'a> {
    fn new(call: Call, path: &'a Path) -> Self {
        Op { call, path, other: None, bytes: &[] }
    }
}

#[cfg(not(all(unix, feature = "faults")))]
fn call<T>(op: Op<'_>, run: &mut dyn FnMut(&[u8]) -> io::Result<T>) -> io::Result<T> {
    run(op.bytes)
}

/// Makes the call `run`, which gets the bytes to write.
fn perform<T>(op: Op<'_>, mut run: impl FnMut(&[u8]) -> io::Result<T>) -> io::Result<T> {
    loop {
        match call(op, &mut run) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A file open for writing at its end. Each `write` is one system call; buffer above it.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    /// Makes a file that must not exist; a link of that name is not followed.
    pub fn create_new(path: &Path) -> io::Result<Output> {
        let file = perform(Op::new(Call::Create, path), |_| File::create_new(path))?;
        Ok(Output { file, path: path.to_path_buf() })
    }

    /// Opens a file for appending and reading, making it if it is absent.
    pub fn append(path: &Path) -> io::Result<Output> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let file = perform(Op::new(Call::Append, path), |_| options.open(path))?;
        Ok(Output { file, path: path.to_path_buf() })
    }

    /// Waits until the content is on the disk. Closing afterwards has nothing left to report.
    pub fn sync(&self) -> io::Result<()> {
        perform(Op::new(Call::SyncFile, &self.path), |_| self.file.sync_all())
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let op = Op { bytes, ..Op::new(Call::Write, &self.path) };
        perform(op, |bytes| (&self.file).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until the content of a closed file is on the disk.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    perform(Op::new(Call::SyncFile, path), |_| file.sync_all())
}

/// Makes new, changed and removed names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    // Other systems do not open directories as files, and order these operations themselves.
    if !cfg!(unix) {
        return Ok(());
    }
    let dir = File::open(path)?;
    match perform(Op::new(Call::SyncDir, path), |_| dir.sync_all()) {
        // File systems that cannot sync a directory say so; there is nothing more to ask of them.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}

pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    perform(Op::new(Call::MakeDir, path), |_| std::fs::create_dir(path))
}

/// Makes a directory and its parents, each name durable: what is later written below must not vanish with them.
pub(super) fn make_dir_all(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = parent_or_dot(path);
    if !parent.exists() {
        make_dir_all(parent)?;
    }
    match make_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_dir(parent),
    }
}

/// Gives `from` the name `to`, replacing a file or an empty directory of that name, atomically.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let op = Op { other: Some(to), ..Op::new(Call::Rename, from) };
    perform(op, |_| std::fs::rename(from, to))
}

/// Makes `link`, which must not exist, a symbolic link to `target`.
pub(super) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let op = Op { other: Some(target), ..Op::new(Call::Symlink, link) };
    perform(op, |_| make_symlink(target, link))
}

#[cfg(unix)]
fn make_symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn make_symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    perform(Op::new(Call::RemoveFile, path), |_| std::fs::remove_file(path))
}

/// Removes a file, a link (not what it names), or a directory with all that is in it, names in order.
///
/// Meant for directories of this process: one that another user swaps for a link meanwhile is not guarded against.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.is_dir() {
        return remove_file(path);
    }
    let mut paths = std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        remove_tree(&path)?;
    }
    perform(Op::new(Call::RemoveDir, path), |_| std::fs::remove_dir(path))
}
