//! One opaque error for all library crates: a [`Kind`] that decides the exit code, a stable short `code` that tests
//! and `--json` use, a message for people, and a hint that says what to do next.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::path::Path;

/// `Result` with the house's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What class of thing went wrong; the command line maps each to one exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A check that was asked for failed (`verify`, `data check`): exit 1.
    Check,
    /// Flags or settings that cannot work together: exit 2.
    Usage,
    /// A file, template or data line that is wrong: exit 3.
    Input,
    /// Memory, disk, permissions: exit 4.
    Resource,
    /// A loss or gradient that is not finite; the weights are as before: exit 5.
    Diverged,
    /// Stopped by the user: exit 130.
    Interrupted,
}

impl Kind {
    /// The process exit code that stands for this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Check => 1,
            Kind::Usage => 2,
            Kind::Input => 3,
            Kind::Resource => 4,
            Kind::Diverged => 5,
            Kind::Interrupted => 130,
        }
    }
}

/// An error with its place, and with a hint where one helps. Messages are lower case, without a final stop.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    code: &'static str,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error; `code` is a short stable word such as `truncated`.
    pub fn new(kind: Kind, code: &'static str, message: impl Display) -> Self {
        Error(Box::new(Inner { kind, code, message: message.to_string(), hint: None, source: None }))
    }

    /// Shorthand for [`Kind::Input`].
    pub fn input(code: &'static str, message: impl Display) -> Self {
        Self::new(Kind::Input, code, message)
    }

    /// Shorthand for [`Kind::Usage`].
    pub fn usage(code: &'static str, message: impl Display) -> Self {
        Self::new(Kind::Usage, code, message)
    }

    /// Shorthand for [`Kind::Resource`].
    pub fn resource(code: &'static str, message: impl Display) -> Self {
        Self::new(Kind::Resource, code, message)
    }

    /// Adds what the user can do about it.
    pub fn with_hint(mut self, hint: impl Display) -> Self {
        self.0.hint = Some(hint.to_string());
        self
    }

    /// Adds the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error in another class.
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Puts `place: ` before the message, for example a path or `data.jsonl:3`.
    pub fn at(mut self, place: impl Display) -> Self {
        self.0.message = format!("{place}: {}", self.0.message);
        self
    }

    /// [`Error::at`] for a path.
    pub fn in_file(self, path: &Path) -> Self {
        self.at(path.display())
    }

    /// The class of the error.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The stable short name of the error.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.0.code, self.0.message)?;
        if let Some(hint) = &self.0.hint {
            write!(f, " (hint: {hint})")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}
