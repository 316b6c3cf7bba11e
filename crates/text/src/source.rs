//! Where examples come from: files, patterns of files, standard input. What a source holds is told by the extension
//! of its name; of standard input, which has none, by its first byte.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use planish_base::{Error, Result};
use planish_store::fs;

/// The path that stands for standard input.
pub const STDIN: &str = "-";

/// What a source holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A JSON object a line.
    Lines,
    /// One document.
    Text,
    /// Token ids, 32 bits each.
    Tokens,
}

/// A file, or what standard input held.
pub(crate) struct Source {
    pub shape: Shape,
    path: PathBuf,
    /// None: in the file at `path`.
    memory: Option<Vec<u8>>,
}

impl Source {
    /// The sources that `paths` stand for, in order; standard input is read here, at most `limit` bytes of it.
    ///
    /// # Errors
    /// Patterns that match nothing; a directory; an extension that no reader knows; standard input named twice, and
    /// those of reading it.
    pub fn all(paths: &[PathBuf], limit: usize) -> Result<Vec<Source>> {
        if paths.iter().filter(|p| is_stdin(p)).count() > 1 {
            return Err(Error::usage("stdin", "`-` is given twice, and standard input can be read once"));
        }
        let mut sources = Vec::new();
        for path in paths {
            if is_stdin(path) {
                sources.push(Self::stdin(fs::read_stdin(limit as u64)?));
                continue;
            }
            for path in fs::expand(path)? {
                sources.push(Self::file(path)?);
            }
        }
        Ok(sources)
    }

    fn stdin(bytes: Vec<u8>) -> Source {
        let shape = if is_lines(&bytes) { Shape::Lines } else { Shape::Text };
        Source { shape, path: "stdin".into(), memory: Some(bytes) }
    }

    fn file(path: PathBuf) -> Result<Source> {
        if fs::is_dir(&path) {
            return Err(Error::input("directory", "a directory, expected a file").in_file(&path).with_hint(
                "name its files, as in `DIR/*.txt`; `DIR/**/*.txt` finds those of its directories too",
            ));
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        let shape = match extension.as_str() {
            "txt" | "md" | "text" => Shape::Text,
            "jsonl" | "ndjson" | "json" => Shape::Lines,
            "bin" | "toyc" => Shape::Tokens,
            other => {
                let text = format!("extension {other:?}, expected .jsonl, .txt, or .bin");
                return Err(Error::input("data file", text)
                    .with_hint("unpack or convert the file to JSON lines")
                    .in_file(&path));
            }
        };
        Ok(Source { shape, path, memory: None })
    }

    /// What errors and places name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What standard input held.
    pub fn into_memory(self) -> Option<Vec<u8>> {
        self.memory
    }

    /// What an example is called: its line, its file, or of a corpus the index of its first token.
    pub fn place(&self, number: u64) -> String {
        match self.shape {
            Shape::Lines => format!("{}:{number}", self.path.display()),
            Shape::Text => self.path.display().to_string(),
            Shape::Tokens => format!("{} from token {number}", self.path.display()),
        }
    }

    /// SHA-256 of the content.
    ///
    /// # Errors
    /// Those of reading.
    pub fn sha256(&self) -> Result<String> {
        match &self.memory {
            Some(bytes) => Ok(fs::sha256(bytes)),
            None => fs::sha256_file(&self.path),
        }
    }

    /// The whole as text, without a byte order mark.
    ///
    /// # Errors
    /// Those of reading; `utf-8` with the byte offset; more than `limit` bytes.
    pub fn text(&self, limit: usize) -> Result<String> {
        let Some(bytes) = &self.memory else { return fs::read_text_bounded(&self.path, limit as u64) };
        let text = str::from_utf8(bytes).map_err(|e| {
            let message = format!("byte {}: the text is not UTF-8", e.valid_up_to());
            Error::input("utf-8", message).in_file(&self.path)
        })?;
        Ok(text.strip_prefix('\u{feff}').unwrap_or(text).to_owned())
    }

    /// Calls `each` with the number and text of each line.
    ///
    /// # Errors
    /// Those of reading; a line of more than `limit` bytes or that is not UTF-8; those of `each`.
    pub fn lines(&self, limit: usize, mut each: impl FnMut(u64, &str) -> Result<()>) -> Result<()> {
        match &self.memory {
            Some(bytes) => {
                let place = self.path.display().to_string();
                let mut lines = fs::Lines::new(Cursor::new(bytes), place, limit);
                while let Some((number, line)) = lines.next_line()? {
                    each(number, line)?;
                }
            }
            None => {
                let mut lines = fs::Lines::open(&self.path, limit)?;
                while let Some((number, line)) = lines.next_line()? {
                    each(number, line)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a path stands for standard input; a file of that name is `./-`.
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// Whether bytes of unknown shape are JSON lines: the first that is not blank begins an object.
pub fn is_lines(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}
