//! A flag that one side sets and the other asks between two steps of a long computation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cloneable; all clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the computation to stop. Async-signal-safe.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
