//! Standard input: what another program sends, which can be read once.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Read, stdin};

use super::classify;
use crate::{Error, Result};

/// Reads standard input to its end, at most `limit` bytes.
///
/// # Errors
/// Kind `Usage` where it is a terminal; `too large`; failing reads.
pub fn read_stdin(limit: u64) -> Result<Vec<u8>> {
    if stdin().is_terminal() {
        return Err(Error::usage("stdin", "`-` is standard input, and nothing is sent to it")
            .with_hint("send something, as in `zcat data.jsonl.gz | planish ..`, or name a file"));
    }
    let mut bytes = Vec::new();
    let read = stdin().lock().take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| classify("read", e).at("standard input"))?;
    if bytes.len() as u64 > limit {
        let message = format!("standard input has more than the {limit} bytes allowed");
        return Err(Error::input("too large", message).with_hint("write it to a file, and name that"));
    }
    Ok(bytes)
}
