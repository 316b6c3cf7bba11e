//! Writing: results to stdout, notes to stderr.

use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

use planish_base::{Error, Result};
use serde::Serialize;

const BROKEN_PIPE: &str = "broken pipe";

/// Standard output. Text appears when [`Out::flush`] is called, at the latest at the end.
pub struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    /// Locks stdout.
    pub fn new() -> Out {
        Out(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    /// Writes text as it is.
    pub fn text(&mut self, text: &str) -> Result<()> {
        self.0.write_all(text.as_bytes()).map_err(failed)
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> Result<()> {
        self.text(line)?;
        self.text("\n")
    }

    /// Writes a value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|e| Error::input("json", e.to_string()))?;
        self.line(&text)
    }

    /// Makes everything written so far appear.
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

fn failed(e: io::Error) -> Error {
    match e.kind() {
        ErrorKind::BrokenPipe => Error::resource(BROKEN_PIPE, "nobody reads the output"),
        _ => Error::resource("output", format!("cannot write to stdout: {e}"))
            .with_hint("the disk behind the output may be full"),
    }
}

/// Whether the reader of stdout has gone.
pub fn is_broken_pipe(error: &Error) -> bool {
    error.code() == BROKEN_PIPE
}

/// A remark to the person at the terminal, on stderr.
pub fn note(text: &str) {
    // Nothing can be done when stderr is gone.
    _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Control characters made visible, so that no file can send commands to a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| c.is_control() && c != '\n';
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hidden(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}
