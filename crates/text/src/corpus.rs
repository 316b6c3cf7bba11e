//! A corpus of token ids: little-endian 32-bit integers, nothing else, or behind a header of 16 bytes:
//!
//! ```text
//! 0  "TOYC"    4  version, 1    8  vocabulary    12  reserved    16  ids
//! ```
//!
//! It is one long document without an end of its own, so it is always cut by the context.

use planish_base::{Error, Result};
use planish_store::{Bytes, process};

use crate::Example;
use crate::length::cuts;

const MAGIC: &[u8] = b"TOYC";
const HEADER: usize = 16;
const VERSION: u32 = 1;
const ID: usize = 4;
/// Bytes of a token in an [`Example`]: its id, and whether it is trained.
const IN_MEMORY: u64 = 5;

/// Examples of at most `context` tokens, of which all but the first are trained, with the index of each one's first
/// token. `vocab` is that of the model, where it is known.
///
/// # Errors
/// Kind `Input`, with the byte offset: a file that was cut, another version, another vocabulary, an id outside of it;
/// fewer than two ids. Kind `Resource` for more than the memory that is free.
pub(crate) fn examples(bytes: &Bytes, vocab: Option<usize>, context: usize) -> Result<Vec<(usize, Example)>> {
    let bytes: &[u8] = bytes.as_ref();
    let (start, limit) = match bytes.starts_with(MAGIC) {
        true => (HEADER, header(bytes, vocab)?),
        false => (0, vocab.map_or(i64::from(u32::MAX), |v| v as i64)),
    };
    if !bytes.len().is_multiple_of(ID) {
        let whole = bytes.len() / ID * ID;
        let message = format!("byte {whole}: the file ends in the middle of an id ({} bytes)", bytes.len());
        return Err(
            Error::input("truncated", message).with_hint("ids are 32-bit integers; write the file again")
        );
    }
    let (ids, _) = bytes[start..].as_chunks::<ID>();
    check_ids(ids, start, limit)?;
    let needed = ids.len() as u64 * IN_MEMORY;
    if let Some(free) = process::available_bytes().filter(|free| needed > *free) {
        let mb = |b: u64| b / 1_000_000;
        let message = format!("{} tokens need {} MB, {} MB are free", ids.len(), mb(needed), mb(free));
        return Err(Error::resource("memory", message).with_hint("cut the corpus into several files"));
    }
    let piece = |range: std::ops::Range<usize>| {
        let trained = (0..range.len()).map(|i| i > 0).collect();
        let first = range.start;
        let ids = ids[range].iter().map(|b| u32::from_le_bytes(*b)).collect();
        (first, Example { ids, trained, place: String::new() })
    };
    Ok(cuts(ids.len(), context).map(piece).collect())
}

/// Checks the header and gives the number of ids there may be.
fn header(bytes: &[u8], vocab: Option<usize>) -> Result<i64> {
    let Some((head, _)) = bytes.split_first_chunk::<HEADER>() else {
        let message = format!("byte {}: the file ends within its header of {HEADER} bytes", bytes.len());
        return Err(Error::input("truncated", message));
    };
    let field = |at: usize| head[at..at + ID].iter().rev().fold(0u32, |n, b| n << 8 | u32::from(*b));
    let (version, own) = (field(4), field(8));
    if version != VERSION {
        return Err(Error::input("version", format!("byte 4: version {version}, expected {VERSION}")));
    }
    match vocab {
        Some(vocab) if own as usize != vocab => {
            let message = format!("byte 8: a vocabulary of {own}, the model has {vocab}");
            Err(Error::input("vocab", message).with_hint("the corpus was made with another tokenizer"))
        }
        _ => Ok(i64::from(own)),
    }
}

fn check_ids(ids: &[[u8; ID]], start: usize, limit: i64) -> Result<()> {
    if ids.len() < 2 {
        let message = format!("{} token ids, expected at least 2 (one to read, one to predict)", ids.len());
        return Err(Error::input("empty file", message));
    }
    let id = |b: &[u8; ID]| i64::from(i32::from_le_bytes(*b));
    match ids.iter().position(|b| !(0..limit).contains(&id(b))) {
        None => Ok(()),
        Some(i) => {
            let message = format!(
                "byte {}: token {i} is {}, expected an id from 0 to below {limit}",
                start + i * ID,
                id(&ids[i])
            );
            Err(Error::input("token id", message)
                .with_hint("ids are little-endian 32-bit integers of the model's own vocabulary"))
        }
    }
}
