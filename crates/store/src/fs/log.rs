//! Logs that only grow.
#![forbid(unsafe_code)]

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::disk::Output;
use super::io_error;
use crate::{Error, Result};

/// A text file to which whole lines are appended, each with one write, so that readers and a crash see whole lines.
#[derive(Debug)]
pub struct AppendLog {
    output: Output,
}

impl AppendLog {
    /// Opens a log for appending, creating it if it is absent. A last line that a crash cut short is ended first, so
    /// that what follows stands on lines of its own.
    pub fn create(path: &Path) -> Result<AppendLog> {
        let failed = |e| io_error(path, "open the log", e);
        let mut output = Output::append(path).map_err(failed)?;
        if is_cut_short(&output).map_err(failed)? {
            output.write_all(b"\n").map_err(failed)?;
        }
        Ok(AppendLog { output })
    }

    /// Appends `line` and its ending. The line itself must hold no line ending.
    pub fn append_line(&mut self, line: &str) -> Result<()> {
        if line.contains('\n') {
            let error = Error::input("line", "a log line must not hold a line ending");
            return Err(error.in_file(self.output.path()));
        }
        let text = format!("{line}\n");
        self.output.write_all(text.as_bytes()).map_err(|e| io_error(self.output.path(), "append to", e))
    }

    /// Waits until everything appended is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.output.sync().map_err(|e| io_error(self.output.path(), "sync", e))
    }
}

fn is_cut_short(output: &Output) -> io::Result<bool> {
    let mut file = output.file();
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
