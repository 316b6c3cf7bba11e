//! Room on a file system.
#![forbid(unsafe_code)]

use std::path::Path;

/// Bytes that this process may still write on the file system of `path`, or of its nearest parent that exists. None
/// where the system does not say. Others write too: a figure for a plan and for an error, not a promise.
pub fn free_bytes(path: &Path) -> Option<u64> {
    // A relative path ends with an empty one, which stands for the current directory.
    let existing = path.ancestors().find(|p| p.exists());
    ask(existing.unwrap_or(Path::new(".")))
}

#[cfg(unix)]
fn ask(path: &Path) -> Option<u64> {
    let told = rustix::fs::statvfs(path).ok()?;
    // Some file systems keep no count; they say that they have no blocks at all.
    if told.f_blocks == 0 { None } else { told.f_bavail.checked_mul(told.f_frsize) }
}

#[cfg(not(unix))]
fn ask(_path: &Path) -> Option<u64> {
    None
}
