//! Files that lie outside the project: fetched models, reference values, programs.
//!
//! Variables say where: `PLANISH_SHARED` (default: `../shared` beside the project), `PLANISH_MODELS`, `PLANISH_PYTHON`,
//! `PLANISH_BIN`. A test that lacks one is skipped and says so past the capture of test output. With
//! `PLANISH_REQUIRE_ALL`, which `cargo xtask test` sets, it fails instead; reference values of `PLANISH_SHARED` stay
//! optional.

use std::io::Write;
use std::path::{Path, PathBuf};

/// `name` below the folder (or, with an empty name, the file) that `variable` holds.
///
/// # Panics
/// When it is absent and `PLANISH_REQUIRE_ALL` asks for it.
#[allow(clippy::disallowed_methods, reason = "where files lie is the environment of the test run")]
pub fn needed(variable: &str, name: &str) -> Option<PathBuf> {
    let optional = variable == "PLANISH_SHARED";
    let default = optional.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let path = std::env::var_os(variable).map(PathBuf::from).or(default);
    let found = path.map(|p| if name.is_empty() { p } else { p.join(name) });
    if let Some(found) = found.as_ref().filter(|p| p.exists()) {
        return Some(found.clone());
    }
    let what = found.map_or_else(|| format!("${variable}"), |p| p.display().to_string());
    let message = format!("{what} does not exist: set {variable}, or run `cargo xtask test`");
    assert!(optional || std::env::var_os("PLANISH_REQUIRE_ALL").is_none(), "{message}");
    // Not eprintln!, whose output a passing test keeps to itself.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {message}");
    None
}
