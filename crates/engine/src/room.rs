//! Memory is asked for before it is taken: what does not fit is refused with numbers, instead of the system killing
//! the process half way.

use planish_base::{Error, Result};
use planish_store::process;

/// Refuses `needed` bytes more for `what` where the system has not that many.
///
/// # Errors
/// Kind `Resource`, with both numbers.
pub(crate) fn check(what: &str, needed: u64) -> Result<()> {
    match process::available_bytes() {
        Some(free) if free < needed => {
            let mb = |b: u64| b.div_ceil(1_000_000);
            let message =
                format!("{what} needs {} MB more memory, {} MB are free", mb(needed), free / 1_000_000);
            Err(Error::resource("memory", message).with_hint(
                "a smaller --context needs less; so do shorter examples and smaller micro-batches",
            ))
        }
        _ => Ok(()),
    }
}
