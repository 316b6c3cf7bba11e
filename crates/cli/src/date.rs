//! The day, for chat templates that ask for it and for names of runs.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Today in UTC as `YYYY-MM-DD`.
pub fn today() -> String {
    let (year, month, day) = civil(seconds() / DAY);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Now in UTC as `YYYYMMDD-HHMMSS`, for names.
pub fn stamp() -> String {
    let now = seconds();
    let (year, month, day) = civil(now / DAY);
    let (hour, minute, second) = (now % DAY / 3600, now % 3600 / 60, now % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Days since 1970-01-01 to a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms"):
/// years are counted from March, so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        let cases = [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_453, (2025, 12, 31)),
        ];
        for (days, date) in cases {
            assert_eq!(civil(days), date);
        }
    }
}
