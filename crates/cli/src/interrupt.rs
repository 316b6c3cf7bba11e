//! Ctrl-C, and being asked to terminate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use planish_base::{CancelToken, Error, Kind, Result};

/// The first signal asks the command to stop in good order; the second ends the process.
#[derive(Clone)]
pub struct Interrupt {
    token: CancelToken,
    waiting: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handler.
    ///
    /// # Errors
    /// Kind `Resource` when the system refuses.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt { token: CancelToken::new(), waiting: Arc::default() };
        let Interrupt { token, waiting } = interrupt.clone();
        let handler = move || {
            if token.is_cancelled() || waiting.load(Ordering::Relaxed) {
                leave();
            }
            token.cancel();
        };
        ctrlc::set_handler(handler)
            .map_err(|e| Error::resource("signal", format!("cannot handle interrupts: {e}")))?;
        Ok(interrupt)
    }

    /// What long computations ask.
    pub fn token(&self) -> &CancelToken {
        &self.token
    }

    /// Runs a read that blocks: a signal then ends the process at once, since nobody would ask the token.
    pub fn while_waiting<T>(&self, read: impl FnOnce() -> T) -> T {
        self.waiting.store(true, Ordering::Relaxed);
        let result = read();
        self.waiting.store(false, Ordering::Relaxed);
        result
    }

    /// # Errors
    /// Kind `Interrupted` once a signal came.
    pub fn check(&self) -> Result<()> {
        match self.token.is_cancelled() {
            true => Err(Error::new(Kind::Interrupted, "interrupted", "interrupted")),
            false => Ok(()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the main thread is in a read or a step that does not end")]
fn leave() {
    std::process::exit(i32::from(Kind::Interrupted.exit_code()));
}
