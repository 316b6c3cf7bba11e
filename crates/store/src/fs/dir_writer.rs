//! Writing directories that survive kills, full disks and power losses.
//!
//! The order of [`DirWriter`], and why:
//!
//! 1. **Exclusive temporary directory** beside the target. Nobody takes it for the real one, and a rename within one
//!    directory is atomic.
//! 2. **Each file: write, `fsync`, close.** A rename can reach the disk before the data of the files below it; without
//!    the sync a power loss leaves the right names with empty files.
//! 3. **The manifest, last, `fsync`.** It can only name what is on the disk already.
//! 4. **`fsync` of the temporary directory.** The names of the files are data of their directory: without it the
//!    directory may turn up without some of them.
//! 5. **Rename** to the target: the one instant at which it appears.
//! 6. **`fsync` of the parent.** Without it the rename itself may be lost after we said that it happened, and the
//!    caller may by then have removed the older directory.
//! 7. **Read back and compare** with the manifest: what was written is what will be read.
//!
//! Only after that does the caller remove older directories, with [`remove_dir_all`](super::remove_dir_all).
//! `tests/power_loss.rs` builds every state of the disk in between, and shows that leaving out any of the syncs loses
//! something.
#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::atomic::BUFFER;
use super::disk::{self, Output};
use super::manifest::{self, FileEntry, Manifest};
use super::temporary::{Temporary, parent, parent_or_dot};
use super::{Hasher, SealedDir, in_place, io_error, write_failed};
use crate::{Error, Result};

/// A directory that will appear complete, checked and durable, or not at all. Dropped without [`commit`](Self::commit)
/// it leaves nothing.
#[derive(Debug)]
pub struct DirWriter {
    target: PathBuf,
    temporary: Temporary,
    files: Vec<FileEntry>,
    /// A file that failed is missing or torn: there is nothing to commit.
    failed: bool,
}

impl DirWriter {
    /// Begins a directory that will be `target`, which must not exist, in a directory that must.
    ///
    /// Errors: `exists`, and those of making the temporary directory.
    pub fn create(target: &Path) -> Result<DirWriter> {
        parent(target)?;
        must_be_absent(target)?;
        let failed = |e| io_error(target, "make a temporary directory beside it", e);
        let (temporary, ()) = Temporary::beside(target, disk::make_dir).map_err(failed)?;
        Ok(DirWriter { target: target.to_path_buf(), temporary, files: Vec::new(), failed: false })
    }

    /// Writes one file: streamed, hashed while it is written, synced, closed. `name` is a plain file name (letters,
    /// digits, `.`, `_`, `-`, the first not a dot), each once.
    ///
    /// `fill` turns its own write errors into the house's with [`write_failed`](super::write_failed). After an error,
    /// whoever caused it, the directory can no longer be committed.
    pub fn file(&mut self, name: &str, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
        manifest::check_name(name).map_err(|e| e.in_file(&self.target))?;
        if self.files.iter().any(|f| f.name == name) {
            return Err(manifest::bad(format!("{name:?} is written twice")).in_file(&self.target));
        }
        self.failed = true;
        let entry = self.write(name, fill)?;
        self.files.push(entry);
        self.failed = false;
        Ok(())
    }

    /// Puts the directory in its place, durable, and reads it back. `format` says what the files mean, with a version.
    ///
    /// After an error the target is absent, if the disk still lets us take it back.
    pub fn commit(mut self, format: &str) -> Result<SealedDir> {
        if self.failed {
            let message = "a file of it could not be written, so it cannot be completed";
            return Err(Error::input("incomplete", message).in_file(&self.target));
        }
        let manifest = Manifest { format: format.to_owned(), files: std::mem::take(&mut self.files) };
        let text = manifest.to_text().map_err(|e| e.in_file(&self.target))?;
        self.write(manifest::NAME, |out| out.write_all(&text).map_err(write_failed))?;
        disk::sync_dir(self.temporary.path()).map_err(|e| io_error(&self.target, "sync the directory", e))?;
        // Renaming over an empty directory would work and surprise.
        must_be_absent(&self.target)?;
        self.temporary.put_in_place(&self.target).map_err(|e| io_error(&self.target, "rename to", e))?;
        let sealed = self.seal(format);
        if sealed.is_err() {
            // Best effort: if this fails too, readers still see by the manifest whether it is whole.
            let _ = self.temporary.take_back(&self.target);
        }
        sealed
    }

    fn seal(&self, format: &str) -> Result<SealedDir> {
        let parent = parent_or_dot(&self.target);
        disk::sync_dir(parent).map_err(|e| io_error(&self.target, "sync the directory that holds", e))?;
        SealedDir::open(&self.target, format)
    }

    fn write(&self, name: &str, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<FileEntry> {
        // Errors name the file as the user will know it.
        let path = self.target.join(name);
        let output = Output::create_new(&self.temporary.path().join(name))
            .map_err(|e| io_error(&path, "create a temporary for", e))?;
        let hashed = Hashed { output, hasher: Hasher::new(), bytes: 0 };
        let mut buffered = BufWriter::with_capacity(BUFFER, hashed);
        let filled = fill(&mut buffered);
        let written = buffered.get_ref().bytes;
        let after = format!("after {written} bytes, while writing ");
        filled.map_err(|e| in_place(e, &path, &after))?;
        let hashed =
            buffered.into_inner().map_err(|e| in_place(write_failed(e.into_error()), &path, &after))?;
        hashed.output.sync().map_err(|e| io_error(&path, "sync", e))?;
        Ok(FileEntry { name: name.to_owned(), bytes: hashed.bytes, sha256: hashed.hasher.finish() })
    }
}

fn must_be_absent(target: &Path) -> Result<()> {
    // Not `exists`: a link that leads nowhere is in the way too.
    if target.exists() || target.is_symlink() {
        let hint = "remove what is there, or choose another name";
        return Err(Error::input("exists", "is there already").in_file(target).with_hint(hint));
    }
    Ok(())
}

/// Hashes and counts what was really written, also when a write took only a part.
struct Hashed {
    output: Output,
    hasher: Hasher,
    bytes: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or(bytes));
        self.bytes = self.bytes.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
