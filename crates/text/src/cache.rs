//! Tokens of a source that was read before.
//!
//! ```text
//! DIR/KEY/  manifest.json  entry.json  lengths.bin  ids.bin  trained.bin
//! ```
//!
//! The key is a SHA-256 of everything that the tokens depend on: content, vocabulary, template, options, version. An
//! entry is a sealed directory: it appears whole or not at all, and all its checksums are checked before it is used.
//! Examples are stored as they are before the length policy, which is cheap and has settings of its own.

use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_store::fs::{self, DirWriter, SealedDir};
use serde::{Deserialize, Serialize};

use crate::source::{Shape, Source};
use crate::{Encoder, Example, LoadOptions};

/// The format's name and version, as the manifest has it. Another number where tokens of the same key may differ.
const FORMAT: &str = "planish-tokens/1";
const ENTRY: &str = "entry.json";
const ENTRY_LIMIT: u64 = 1 << 16;
const LENGTHS: &str = "lengths.bin";
const IDS: &str = "ids.bin";
const TRAINED: &str = "trained.bin";
/// Bytes of an example in `lengths.bin`: its line, its tokens.
const LENGTH_BYTES: usize = 16;

/// What an encoder made of a source.
pub(crate) struct Encoded {
    /// The name of the format that its lines have.
    pub format: String,
    /// The examples, each with its number in the source.
    pub examples: Vec<(u64, Example)>,
}

/// Where the tokens of one source are kept.
pub(crate) struct Cache {
    dir: PathBuf,
    content: String,
    key: String,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
    format: String,
}

impl Cache {
    /// The place of `source` in the cache that the options name. Corpora of token ids have none: they are tokens.
    ///
    /// # Errors
    /// Those of reading the source.
    pub fn of(source: &Source, encoder: &Encoder<'_>, o: &LoadOptions) -> Result<Option<Cache>> {
        let Some(dir) = o.cache.as_ref().filter(|_| source.shape != Shape::Tokens) else { return Ok(None) };
        let content = source.sha256()?;
        let depends = serde_json::json!({
            "format": FORMAT,
            "planish": env!("CARGO_PKG_VERSION"),
            "content": content,
            "lines": source.shape == Shape::Lines,
            "tokenizer": encoder.tokenizer.map(|t| t.fingerprint()),
            "template": encoder.template.map(|t| t.fingerprint()),
            "specials_in_content": encoder.specials_in_content,
        });
        let key = fs::sha256(depends.to_string().as_bytes());
        Ok(Some(Cache { dir: dir.join(&key), content, key }))
    }

    /// What was kept; none where nothing was.
    ///
    /// # Errors
    /// An entry that is damaged, incomplete, of another version or of another key.
    pub fn read(&self) -> Result<Option<Encoded>> {
        match fs::exists(&self.dir) {
            true => self.read_entry().map(Some),
            false => Ok(None),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn read_entry(&self) -> Result<Encoded> {
        let bad = |what: &str| Error::input("cache", what.to_owned()).in_file(&self.dir);
        let dir = SealedDir::open(&self.dir, FORMAT)?;
        let entry: Entry = serde_json::from_slice(&dir.read(ENTRY, ENTRY_LIMIT)?)
            .map_err(|e| bad(&format!("{ENTRY}: {e}")))?;
        if entry.key != self.key {
            return Err(bad("is the entry of other data"));
        }
        let (lengths, ids, trained) = (dir.bytes(LENGTHS)?, dir.bytes(IDS)?, dir.bytes(TRAINED)?);
        let (lengths, rest) = lengths.as_ref().as_chunks::<LENGTH_BYTES>();
        let (mut ids, odd) = ids.as_ref().as_chunks::<4>();
        let mut trained: &[u8] = trained.as_ref();
        if !rest.is_empty() || !odd.is_empty() || ids.len() != trained.len() {
            return Err(bad("its files do not fit together"));
        }
        let mut examples = Vec::with_capacity(lengths.len());
        for record in lengths {
            let number =
                |at: usize| record[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let length = usize::try_from(number(8)).ok().filter(|n| *n <= ids.len());
            let length = length.ok_or_else(|| bad("an example is longer than its file"))?;
            let (own_ids, own_trained);
            (own_ids, ids) = ids.split_at(length);
            (own_trained, trained) = trained.split_at(length);
            let example = Example {
                ids: own_ids.iter().map(|b| u32::from_le_bytes(*b)).collect(),
                trained: own_trained.iter().map(|b| *b == 1).collect(),
                place: String::new(),
            };
            if example.trained.first() != Some(&false) || example.trained_tokens() == 0 {
                return Err(bad("an example has nothing to train"));
            }
            examples.push((number(0), example));
        }
        match ids.is_empty() && !examples.is_empty() {
            true => Ok(Encoded { format: entry.format, examples }),
            false => Err(bad("its files do not fit together")),
        }
    }

    /// Keeps what was made of `source`, unless the source has changed since its key was made.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn write(&self, source: &Source, encoded: &Encoded) -> Result<()> {
        if source.sha256()? != self.content {
            return Ok(());
        }
        if let Some(parent) = self.dir.parent() {
            fs::create_dir_all(parent)?;
        }
        let entry = Entry { key: self.key.clone(), format: encoded.format.clone() };
        let entry = serde_json::to_vec(&entry)
            .map_err(|e| Error::input("cache", "the entry cannot be stored").with_source(e))?;
        let examples = || encoded.examples.iter();
        let mut writer = DirWriter::create(&self.dir)?;
        writer.file(ENTRY, |w| w.write_all(&entry).map_err(fs::write_failed))?;
        writer.file(LENGTHS, |w| {
            examples().try_for_each(|(line, e)| {
                let record = [line.to_le_bytes(), (e.ids.len() as u64).to_le_bytes()].concat();
                w.write_all(&record).map_err(fs::write_failed)
            })
        })?;
        writer.file(IDS, |w| {
            examples().try_for_each(|(_, e)| {
                let bytes: Vec<u8> = e.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                w.write_all(&bytes).map_err(fs::write_failed)
            })
        })?;
        writer.file(TRAINED, |w| {
            examples().try_for_each(|(_, e)| {
                let bytes: Vec<u8> = e.trained.iter().map(|t| u8::from(*t)).collect();
                w.write_all(&bytes).map_err(fs::write_failed)
            })
        })?;
        writer.commit(FORMAT).map(|_| ())
    }
}
