//! [`Bytes`], and the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::{Result, fs};

/// Immutable bytes: a read-only memory map of a file, or an owned vector. Clones share the storage.
///
/// A map keeps showing the same file after it has been replaced by rename or unlinked. It does not survive the file
/// being truncated in place: see the crate documentation.
#[derive(Clone)]
pub struct Bytes(Arc<Storage>);

enum Storage {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a regular file read-only.
    ///
    /// Errors, with the path: `not found`, `not a file` (a directory, pipe, socket or device), `permission`, `io`.
    pub fn map(path: &Path) -> Result<Bytes> {
        let (file, len) = fs::open_regular(path)?;
        if len == 0 {
            return Ok(Bytes::from_vec(Vec::new()));
        }
        // SAFETY: the map is private to this process's reads and is never written through. What `Mmap::map` cannot
        // rule out is another process changing the file meanwhile. All readers of `Bytes` keep to plain loads with
        // checked bounds and re-validate text when they decode it, so changed content gives other values, never an
        // access out of bounds; a truncated file gives SIGBUS, which the crate documentation names.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| fs::io_error(path, "map", e))?;
        Ok(Bytes(Arc::new(Storage::Mapped(map))))
    }

    /// Takes a vector.
    pub fn from_vec(bytes: Vec<u8>) -> Bytes {
        Bytes(Arc::new(Storage::Owned(bytes)))
    }

    /// Says that the bytes are not needed soon: the pages of a map leave the memory of the process, and come back from
    /// the file when they are read again. Nothing happens to a vector, or where the system has no such advice.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Storage::Mapped(map) = &*self.0 {
            // SAFETY: dropping the pages of a map loses what was written through it, and this one is read-only: it
            // shows the file before and after. An advice that is not taken changes nothing but memory.
            _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match &*self.0 {
            Storage::Mapped(map) => map,
            Storage::Owned(vec) => vec,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::process::status;

    #[test]
    fn released_pages_leave_the_memory_and_come_back() {
        const SIZE: usize = 64 << 20;
        let path = std::env::temp_dir().join(format!("planish-release-{}", std::process::id()));
        let content: Vec<u8> = (0..SIZE).map(|i| (i / 4096 % 251) as u8).collect();
        fs::write_atomic(&path, |w| w.write_all(&content).map_err(fs::write_failed)).unwrap();
        let bytes = Bytes::map(&path).unwrap();
        let in_memory = || status("RssFile:").unwrap();
        assert!(*bytes == content[..]);
        let read = in_memory();
        bytes.clone().release();
        let released = in_memory();
        // Other tests map files of a few pages meanwhile.
        assert!(read > released + SIZE as u64 * 7 / 8, "{read} {released}");
        assert!(*bytes == content[..]);
        assert!(in_memory() > released + SIZE as u64 * 7 / 8);
        fs::remove_file(&path).unwrap();
        Bytes::from_vec(vec![1]).release();
    }
}
