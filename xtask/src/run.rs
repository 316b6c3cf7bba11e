//! Child processes: inherit the terminal, or hand back what they printed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The cargo that started us, so that a toolchain chosen by the caller stays chosen.
pub fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// True if the child ended well. Its output goes where ours goes; it gets no input.
pub fn succeeds(command: &mut Command) -> Result<bool> {
    let status =
        command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {command:?}"))?;
    Ok(status.success())
}

/// As [`succeeds`], but a failed child is an error.
pub fn check(command: &mut Command) -> Result<()> {
    if !succeeds(command)? {
        bail!("{command:?} failed");
    }
    Ok(())
}

/// What the child wrote to its standard output.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} failed");
    }
    Ok(out.stdout)
}

/// Where cargo puts what it builds.
pub fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(root)?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(target))
}

/// `cargo metadata` of the workspace, without its dependencies.
pub fn metadata(root: &Path) -> Result<serde_json::Value> {
    let json = output(cargo(root).args(["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_slice(&json).context("cargo metadata is not JSON")
}
