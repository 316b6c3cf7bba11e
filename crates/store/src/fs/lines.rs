//! A line reader that no line can make swell.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{classify, open_regular};
use crate::{Error, Result};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What may stand around a line of allowed length: CR, LF, the mark; one byte more shows that a line is too long.
const ROOM: u64 = 6;

/// Lines of a text: ended by LF or CRLF, the last one also by the end of the text; a byte order mark at the start is
/// skipped. At most one line is in memory.
#[derive(Debug)]
pub struct Lines<R = BufReader<File>> {
    reader: R,
    /// What errors name: a path.
    place: String,
    limit: usize,
    number: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens a regular file; `limit` is the longest line allowed, in bytes without its ending.
    pub fn open(path: &Path, limit: usize) -> Result<Lines> {
        let (file, _) = open_regular(path)?;
        Ok(Lines::new(BufReader::with_capacity(1 << 16, file), path.display().to_string(), limit))
    }
}

impl<R: BufRead> Lines<R> {
    /// Reads from `reader`; `place` is what errors name.
    pub fn new(reader: R, place: String, limit: usize) -> Self {
        Lines { reader, place, limit, number: 0, buffer: Vec::new() }
    }

    /// The next line with its number, counted from 1, or `None` at the end.
    ///
    /// Errors name `place:line`: `line too long`, `utf-8`, and failing reads.
    pub fn next_line(&mut self) -> Result<Option<(u64, &str)>> {
        self.buffer.clear();
        let most = (self.limit as u64).saturating_add(ROOM);
        let place = &self.place;
        let read = (&mut self.reader)
            .take(most)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|e| classify("read", e).at(place))?;
        if read == 0 {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        let number = self.number;
        let mut line = self.buffer.as_slice();
        if let Some(rest) = line.strip_suffix(b"\n") {
            line = rest.strip_suffix(b"\r").unwrap_or(rest);
        }
        if number == 1 {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        if line.len() > self.limit {
            let message = format!("the line is longer than the {} bytes allowed", self.limit);
            return Err(Error::input("line too long", message).at(format_args!("{place}:{number}")));
        }
        match str::from_utf8(line) {
            Ok(text) => Ok(Some((number, text))),
            Err(e) => {
                let message = format!("the line is not UTF-8 at its byte {}", e.valid_up_to());
                Err(Error::input("utf-8", message).at(format_args!("{place}:{number}")))
            }
        }
    }
}
