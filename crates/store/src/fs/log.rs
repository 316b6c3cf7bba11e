//! Logs that only grow.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::io_error;
use crate::{Error, Result};

/// A text file to which whole lines are appended, each with one write, so that readers and a crash see whole lines.
#[derive(Debug)]
pub struct AppendLog {
    file: File,
    path: PathBuf,
}

impl AppendLog {
    /// Opens a log for appending, creating it if it is absent. A last line that a crash cut short is ended first, so
    /// that what follows stands on lines of its own.
    pub fn create(path: &Path) -> Result<AppendLog> {
        let failed = |e| io_error(path, "open the log", e);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        if file.seek(SeekFrom::End(0)).map_err(failed)? > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)).map_err(failed)?;
            if last != *b"\n" {
                file.write_all(b"\n").map_err(failed)?;
            }
        }
        Ok(AppendLog { file, path: path.to_path_buf() })
    }

    /// Appends `line` and its ending. The line itself must hold no line ending.
    pub fn append_line(&mut self, line: &str) -> Result<()> {
        if line.contains('\n') {
            return Err(Error::input("line", "a log line must not hold a line ending").in_file(&self.path));
        }
        let text = format!("{line}\n");
        self.file.write_all(text.as_bytes()).map_err(|e| io_error(&self.path, "append to", e))
    }

    /// Waits until everything appended is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| io_error(&self.path, "sync", e))
    }
}
