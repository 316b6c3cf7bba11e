//! How a command that failed says so, and its exit code.

use std::error::Error as _;
use std::io::Write;
use std::process::ExitCode;

use planish_base::{Error, Kind};
use serde_json::json;

use crate::output;

/// Prints an error that ended a command and gives the exit code of its kind.
///
/// Nobody reading stdout any more is not an error: `planish .. | head` ends well.
pub fn report(error: &Error, json: bool) -> ExitCode {
    if output::is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let text = match json {
        true => object(error.kind(), error.code(), &error.to_string(), error.hint()),
        false => lines(error),
    };
    // Nothing can be done when stderr is gone.
    _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(error.kind().exit_code())
}

/// Prints what clap says: help and version are results, all else is wrong usage.
pub fn usage(error: &clap::Error) -> ExitCode {
    // The flags did not parse, so the one that matters here is looked for by hand.
    let json = std::env::args_os().any(|a| a == "--json");
    if error.use_stderr() && json {
        let text = error.to_string();
        let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let hint = Some("`planish help` and `planish help COMMAND` list all flags");
        _ = writeln!(std::io::stderr(), "{}", object(Kind::Usage, "arguments", message, hint));
    } else {
        _ = error.print();
    }
    ExitCode::from(if error.use_stderr() { Kind::Usage.exit_code() } else { 0 })
}

/// `error: ..`, a line for each cause that says something new, and the hint.
fn lines(error: &Error) -> String {
    let message = error.to_string();
    let mut text = format!("error: {}", output::printable(&message));
    let mut cause = error.source();
    while let Some(c) = cause {
        let said = c.to_string();
        if !message.contains(&said) {
            text += &format!("\n  caused by: {}", output::printable(&said));
        }
        cause = c.source();
    }
    if let Some(hint) = error.hint() {
        text += &format!("\nhint: {}", output::printable(hint));
    }
    text
}

fn object(kind: Kind, code: &str, message: &str, hint: Option<&str>) -> String {
    let kind = match kind {
        Kind::Check => "check",
        Kind::Usage => "usage",
        Kind::Input => "input",
        Kind::Resource => "resource",
        Kind::Diverged => "diverged",
        Kind::Interrupted => "interrupted",
        _ => "other",
    };
    json!({"error": {"kind": kind, "code": code, "message": message, "hint": hint}}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_listed_once_and_control_characters_are_made_visible() {
        let inner = Error::input("a", "the disk is tired");
        let error = Error::input("b", "cannot read \u{1b}[31mx").with_source(inner).with_hint("wait");
        let want = "error: cannot read \\u{1b}[31mx\n  caused by: the disk is tired\nhint: wait";
        assert_eq!(lines(&error), want);
        let same = Error::input("b", "cannot read: gone").with_source(Error::input("a", "gone"));
        assert_eq!(lines(&same), "error: cannot read: gone");
    }
}
