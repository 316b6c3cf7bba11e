//! Shared by the suites.

use std::path::Path;

/// A temporary directory, in memory where the system has such a place: thousands of syncs of a real disk take minutes,
/// and here they are counted or left out, not relied upon.
pub fn fast_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory")
}
