//! The manifest of a sealed directory: which files it holds, how long they are, and what their hashes are.
//!
//! It needs no checksum of its own: each of its bytes is a name, a length, a hash, or syntax, and changing one makes
//! it name a file that is not there, contradict one that is, or not parse.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::read_bounded;
use crate::{Error, Result};

/// The name of the manifest in its directory.
pub(super) const NAME: &str = "manifest.json";

/// Most bytes of a manifest: room for some thousand files.
const LIMIT: u64 = 1 << 20;

/// Most bytes of a file name: what every common file system takes, with room for a temporary's.
const NAME_LIMIT: usize = 200;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// What the files mean, and in which version; the owner of the directory chooses it.
    pub format: String,
    pub files: Vec<FileEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    pub name: String,
    pub bytes: u64,
    /// 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// Read first: another version may know other fields.
#[derive(Deserialize)]
struct Header {
    format: String,
}

impl Manifest {
    /// Reads the manifest of `dir` and checks it in itself; the files are not looked at.
    ///
    /// Errors: `incomplete`, `format`, `manifest`, and those of reading.
    pub fn read(dir: &Path, format: &str) -> Result<Manifest> {
        let path = dir.join(NAME);
        let text = read_bounded(&path, LIMIT).map_err(|e| match e.code() {
            "not found" => Error::input("incomplete", format!("has no {NAME}")).in_file(dir).with_hint(
                "it was not written to its end, or is not a directory of this kind; use another one",
            ),
            "too large" => bad(format!("is larger than the {LIMIT} bytes allowed")).in_file(&path),
            _ => e,
        })?;
        let invalid = |e: serde_json::Error| bad(format!("is not a manifest: {e}")).in_file(&path);
        let header: Header = serde_json::from_slice(&text).map_err(invalid)?;
        if header.format != format {
            let message = format!("is of format {:?}, expected {format:?}", header.format);
            let hint = "use the version of planish that wrote it, or another directory";
            return Err(Error::input("format", message).in_file(dir).with_hint(hint));
        }
        let manifest: Manifest = serde_json::from_slice(&text).map_err(invalid)?;
        manifest.check().map_err(|e| e.in_file(&path))?;
        Ok(manifest)
    }

    /// The manifest as text, compact, so that each byte counts.
    pub fn to_text(&self) -> Result<Vec<u8>> {
        self.check()?;
        let text = serde_json::to_vec(self).map_err(|e| bad(format!("cannot be written: {e}")))?;
        if text.len() as u64 > LIMIT {
            return Err(bad(format!(
                "has {} bytes, at most {LIMIT} are allowed: too many files",
                text.len()
            )));
        }
        Ok(text)
    }

    /// Sum of the lengths of the files.
    pub fn total_bytes(&self) -> Option<u64> {
        self.files.iter().try_fold(0_u64, |sum, f| sum.checked_add(f.bytes))
    }

    fn check(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for file in &self.files {
            check_name(&file.name)?;
            if !names.insert(&file.name) {
                return Err(bad(format!("names {:?} twice", file.name)));
            }
            let digits = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            if file.sha256.len() != 64 || !file.sha256.bytes().all(digits) {
                return Err(bad(format!("the hash of {:?} is not a SHA-256", file.name)));
            }
        }
        self.total_bytes().map(|_| ()).ok_or_else(|| bad("the lengths add up to more than a disk can hold"))
    }
}

/// A name that is the same file on every system and stays in its directory: letters, digits, `.`, `_`, `-`, the first
/// not a dot.
pub(super) fn check_name(name: &str) -> Result<()> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    let fits = !name.is_empty() && name.len() <= NAME_LIMIT && !name.starts_with('.');
    if fits && name.bytes().all(plain) && name != NAME {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_LIMIT).collect();
    Err(bad(format!("{shown:?} is not a plain file name: letters, digits, dots, `_`, `-`, no dot first")))
}

pub(super) fn bad(message: impl std::fmt::Display) -> Error {
    Error::input("manifest", message)
}
