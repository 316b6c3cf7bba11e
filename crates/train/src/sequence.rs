//! What takes one place of a batch.

use planish_text::Example;

/// One example, or several whole ones that were packed: each stays a segment of its own, with its own positions, and
/// sees none of the others.
pub trait Sequence<'a> {
    /// Its examples.
    fn examples(&self) -> &[&'a Example];
}

impl<'a> Sequence<'a> for &'a Example {
    fn examples(&self) -> &[&'a Example] {
        std::slice::from_ref(self)
    }
}

impl<'a> Sequence<'a> for Vec<&'a Example> {
    fn examples(&self) -> &[&'a Example] {
        self
    }
}

/// The examples of some sequences, one after the other.
pub(crate) fn flat<'a, S: Sequence<'a>>(sequences: &[S]) -> Vec<&'a Example> {
    sequences.iter().flat_map(|s| s.examples()).copied().collect()
}

/// Tokens of a sequence.
pub(crate) fn tokens<'a>(sequence: &impl Sequence<'a>) -> usize {
    sequence.examples().iter().map(|e| e.ids.len()).sum()
}

/// Tokens of a sequence that are in the loss.
pub(crate) fn trained_tokens<'a>(sequence: &impl Sequence<'a>) -> usize {
    sequence.examples().iter().map(|e| e.trained_tokens()).sum()
}
