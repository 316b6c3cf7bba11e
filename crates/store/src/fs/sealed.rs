//! Directories that are complete and unchanged, or refused.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use super::manifest::{self, FileEntry, Manifest};
use super::{Hasher, list_dir, open_regular, read_bounded};
use crate::{Bytes, Error, Result};

/// A directory whose manifest names every file with length and SHA-256, all of which were checked when it was opened.
///
/// Made by [`DirWriter`](super::DirWriter). Entries whose names begin with a dot are not part of it: systems leave
/// such things about.
#[derive(Debug)]
pub struct SealedDir {
    path: PathBuf,
    files: Vec<FileEntry>,
    total_bytes: u64,
}

impl SealedDir {
    /// Opens a directory of the given format and reads all of it once.
    ///
    /// Errors, of kind `Input`, with the path: `incomplete` (no manifest, or a file of it is missing), `format`
    /// (another format or version; both are named), `manifest` (wrong in itself, or an entry that it does not name),
    /// `checksum` (the file, what was expected, what came), `not found`, `not a directory`.
    pub fn open(path: &Path, format: &str) -> Result<SealedDir> {
        // Listed first: it tells a directory that is absent from one without a manifest.
        let entries = list_dir(path)?;
        let manifest = Manifest::read(path, format)?;
        check_entries(path, &entries, &manifest)?;
        for file in &manifest.files {
            check_file(path, file)?;
        }
        let total_bytes = manifest.total_bytes().unwrap_or(u64::MAX);
        Ok(SealedDir { path: path.to_path_buf(), files: manifest.files, total_bytes })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of a file, memory-mapped.
    ///
    /// Errors: `not found` for a name that the manifest lacks, and those of [`Bytes::map`].
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        let file = self.entry(name)?;
        let bytes = Bytes::map(&self.path.join(name))?;
        self.unchanged(file, bytes.len() as u64)?;
        Ok(bytes)
    }

    /// The content of a file of at most `limit` bytes, as a copy.
    ///
    /// Errors: `not found` for a name that the manifest lacks, `too large`, and those of reading.
    pub fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>> {
        let file = self.entry(name)?;
        let bytes = read_bounded(&self.path.join(name), limit)?;
        self.unchanged(file, bytes.len() as u64)?;
        Ok(bytes)
    }

    /// Sum of the lengths of the files, without the manifest.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn entry(&self, name: &str) -> Result<&FileEntry> {
        let found = self.files.iter().find(|f| f.name == name);
        found.ok_or_else(|| Error::input("not found", format!("holds no file {name:?}")).in_file(&self.path))
    }

    fn unchanged(&self, file: &FileEntry, bytes: u64) -> Result<()> {
        if bytes == file.bytes { Ok(()) } else { Err(wrong_length(&self.path.join(&file.name), file, bytes)) }
    }
}

/// Every entry is named by the manifest. (That every name has its file, the hashes show.)
fn check_entries(dir: &Path, entries: &[PathBuf], manifest: &Manifest) -> Result<()> {
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        let known = name == manifest::NAME || manifest.files.iter().any(|f| f.name == name);
        if !known && !name.starts_with('.') {
            return Err(
                manifest::bad(format!("holds {name:?}, which its manifest does not name")).in_file(dir)
            );
        }
    }
    Ok(())
}

fn check_file(dir: &Path, entry: &FileEntry) -> Result<()> {
    let path = dir.join(&entry.name);
    let (file, bytes) = open_regular(&path).map_err(|e| match e.code() {
        "not found" => Error::input("incomplete", "is missing, the manifest names it").in_file(&path),
        _ => e,
    })?;
    // Before anything is read: the length that is hashed is the one that the manifest allows.
    if bytes != entry.bytes {
        return Err(wrong_length(&path, entry, bytes));
    }
    let got = Hasher::of_file(file, &path)?;
    if got != entry.sha256 {
        let message = format!("the SHA-256 is {got}, expected {}", entry.sha256);
        return Err(damaged(message, &path));
    }
    Ok(())
}

fn wrong_length(path: &Path, entry: &FileEntry, bytes: u64) -> Error {
    damaged(format!("has {bytes} bytes, expected {}", entry.bytes), path)
}

fn damaged(message: String, path: &Path) -> Error {
    let hint = "the file has changed since it was written; use another directory or a copy";
    Error::input("checksum", message).in_file(path).with_hint(hint)
}
