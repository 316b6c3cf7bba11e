//! A position in untrusted bytes. Every step is checked, and every error says at which byte it happened.

use planish_base::{Error, Result};

/// What an incomplete download looks like from inside.
pub(crate) const INCOMPLETE: &str =
    "the file may be incomplete: compare its size with the original, and fetch it again";

/// Reads little-endian values forwards.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Version 1 has 32-bit counts and lengths.
    narrow: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0, narrow: false }
    }

    /// From now on counts and lengths have 32 bits.
    pub(crate) fn set_narrow(&mut self, narrow: bool) {
        self.narrow = narrow;
    }

    /// Bytes of a count or length.
    pub(crate) fn count_width(&self) -> u64 {
        if self.narrow { 4 } else { 8 }
    }

    /// Offset of the next byte from the start of the file.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that remain.
    pub(crate) fn remaining(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    /// The next `n` bytes, or `truncated`.
    pub(crate) fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        let taken = end.and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let Some((taken, end)) = taken else {
            let at = self.at;
            let left = self.remaining();
            let message = format!("byte {at}: {what} needs {n} bytes, {left} remain");
            return Err(Error::input("truncated", message).with_hint(INCOMPLETE));
        };
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.take(N as u64, what)?;
        Ok(fixed(bytes))
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count or length: 32 bits in version 1, else 64.
    pub(crate) fn count(&mut self, what: &str) -> Result<u64> {
        if self.narrow { Ok(u64::from(self.u32(what)?)) } else { self.u64(what) }
    }

    /// The bytes of a length-prefixed string.
    pub(crate) fn string(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.count(what)?;
        self.take(len, what)
    }

    /// Compares a declared count with the bytes that remain, given the least that one record takes.
    pub(crate) fn check_count(&self, at: usize, what: &str, count: u64, record: u64) -> Result<()> {
        let left = self.remaining();
        if count.checked_mul(record).is_some_and(|need| need <= left) {
            return Ok(());
        }
        let message =
            format!("byte {at}: {count} {what} need at least {record} bytes each, {left} bytes remain");
        Err(Error::input("count", message).with_hint(INCOMPLETE))
    }
}

/// The first `N` bytes. Callers have checked the length; missing bytes read as zero rather than panic.
pub(crate) fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}
