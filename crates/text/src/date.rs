//! The date that a chat template may ask for, given from outside.

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Date {
    year: u32,
    month: u32,
    day: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Date {
    /// From `YYYY-MM-DD`.
    pub(crate) fn parse(text: &str) -> Option<Date> {
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else { return None };
        let number = |s: &str, width: usize| {
            (s.len() == width && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u32>().ok())?
        };
        let date = Date { year: number(year, 4)?, month: number(month, 2)?, day: number(day, 2)? };
        let leap =
            date.year.is_multiple_of(4) && (!date.year.is_multiple_of(100) || date.year.is_multiple_of(400));
        let days = match date.month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        (1..=days).contains(&date.day).then_some(date)
    }

    /// Sakamoto's method: 0 is Sunday.
    fn weekday(self) -> usize {
        const SHIFT: [u32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        // 400 years are whole weeks; adding them keeps year 0 of January and February above zero.
        let y = self.year + 400 - u32::from(self.month < 3);
        ((y + y / 4 - y / 100 + y / 400 + SHIFT[self.month as usize - 1] + self.day) % 7) as usize
    }

    /// The part of C's `strftime` that templates use, in English.
    pub(crate) fn format(self, format: &str) -> Result<String, String> {
        let (month, weekday) = (MONTHS[self.month as usize - 1], WEEKDAYS[self.weekday()]);
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => out.push_str(&format!("{:04}", self.year)),
                Some('y') => out.push_str(&format!("{:02}", self.year % 100)),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('B') => out.push_str(month),
                Some('b') => out.push_str(&month[..3]),
                Some('A') => out.push_str(weekday),
                Some('a') => out.push_str(&weekday[..3]),
                Some('H' | 'M' | 'S') => out.push_str("00"),
                Some('%') => out.push('%'),
                other => {
                    return Err(format!("strftime_now does not know %{}", other.unwrap_or(' ')));
                }
            }
        }
        Ok(out)
    }
}
