//! The run's log: one JSON object a line, schema `toy/v1` (docs/reference/events.schema.json). A reader ignores kinds and
//! keys it does not know, and a last line that was cut.

use std::path::Path;
use std::time::{Instant, SystemTime};

use planish_base::Result;
use planish_store::fs::{AppendLog, Lines};
use serde_json::{Map, Value, json};

/// The version of the events' meaning.
pub const SCHEMA: &str = "toy/v1";

/// The first event holds settings and plan.
const LINE_LIMIT: usize = 1 << 20;

/// Appends events to a file.
pub struct Events {
    log: AppendLog,
    start: Instant,
    /// Seconds that a run has behind it when it goes on.
    before: f64,
}

impl Events {
    /// Creates the file, or goes on with it: its time never goes back.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn create(path: &Path) -> Result<Events> {
        let log = AppendLog::create(path)?;
        Ok(Events { log, start: Instant::now(), before: latest(path) })
    }

    /// Appends an event: kind, seconds since the start, the step where there is one, then `fields`. Numbers that are
    /// not finite become null.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn append(&mut self, kind: &str, step: Option<usize>, fields: Value) -> Result<()> {
        let mut event = Map::new();
        event.insert("kind".into(), kind.into());
        event.insert("t".into(), json!(self.before + (self.start.elapsed().as_micros() as f64) / 1e6));
        if let Some(step) = step {
            event.insert("step".into(), step.into());
        }
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.log.append_line(&Value::Object(event).to_string())
    }

    /// Waits until everything appended is on the disk.
    ///
    /// # Errors
    /// Kind `Resource` when it cannot be written.
    pub fn sync(&self) -> Result<()> {
        self.log.sync()
    }
}

/// The time of the latest event of a log; what cannot be read was cut short and has none.
fn latest(path: &Path) -> f64 {
    let Ok(mut lines) = Lines::open(path, LINE_LIMIT) else { return 0.0 };
    let mut latest = 0f64;
    while let Ok(Some((_, line))) = lines.next_line() {
        let event: Option<Value> = serde_json::from_str(line).ok();
        latest = event.and_then(|e| e["t"].as_f64()).map_or(latest, |t| latest.max(t));
    }
    latest
}

/// Now, as RFC 3339 in UTC with whole seconds.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    rfc3339(seconds)
}

/// Seconds since 1970 as RFC 3339 (days to civil date after Hinnant, 2013).
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months counted from March, so that the leap day is the last.
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `date -u -d @N +%FT%TZ`.
    #[test]
    fn dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), want);
        }
    }
}
