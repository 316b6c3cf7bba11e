//! The figures as text.

use super::Results;
use super::rounds::{Compared, Figure};

/// The value in the middle; of an even number the mean of the two.
fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => f64::NAN,
        n => (v[(n - 1) / 2] + v[n / 2]) / 2.0,
    }
}

/// `median (min to max)`.
fn spread(values: &[f64]) -> String {
    let digits = if median(values) < 10.0 { 3 } else { 1 };
    let (min, max) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    format!("{:.digits$} ({min:.digits$} to {max:.digits$})", median(values))
}

/// How many times better planish is, by the medians.
fn ratio(compared: &Compared, figure: &Figure) -> f64 {
    let (ours, peer) = (median(&figure.ours), median(&figure.peer));
    if compared.row.larger_is_better() { ours / peer } else { peer / ours }
}

/// A line of the terminal for each figure.
pub fn lines(c: &Compared) -> Vec<String> {
    let line = |f: &Figure| {
        let (ours, peer, ratio) = (spread(&f.ours), spread(&f.peer), ratio(c, f));
        let (id, unit, name) = (c.row.id, c.row.unit(), c.peer);
        let what = if f.name.is_empty() { id.to_owned() } else { format!("{id} {}", f.name) };
        format!(
            "{what}: {ours} {unit}, {name} {peer}: {ratio:.2} times; {:.0} MB, {:.0} MB",
            c.ours_mb, c.peer_mb
        )
    };
    c.figures.iter().map(line).collect()
}

/// The whole report, in Markdown.
pub fn text(results: &Results) -> String {
    let Results { machine, settings, compared, skipped, versions } = results;
    let versions: Vec<String> = versions.iter().map(|(name, v)| format!("{name} {v}")).collect();
    let mut text = format!(
        "# Measurements of {}\n\n\
         Made by `cargo xtask bench`; `bench/README.md` says what each row is. Medians over pairs of processes, with the\n\
         smallest and the largest in brackets; more than 1 time means that planish is ahead. Memory is the most that a\n\
         process had at one time.\n\n\
         - planish: commit {}\n- peers: {}\n- CPU: {}; flags {}\n- memory: {}; {}\n- {settings}\n- load average before: {}\n",
        machine.date,
        machine.commit,
        if versions.is_empty() { "none".to_owned() } else { versions.join(", ") },
        machine.cpu,
        machine.flags,
        machine.memory,
        machine.kernel,
        machine.load
    );
    text += "\n| row | unit | planish | peer | | times | planish MB | peer MB |\n|---|---|---|---|---|---|---|---|\n";
    for c in compared {
        for f in &c.figures {
            text += &format!(
                "| {} {} | {} | {} | {} | {} | {:.2} | {:.0} | {:.0} |\n",
                c.row.id,
                f.name,
                c.row.unit(),
                spread(&f.ours),
                spread(&f.peer),
                c.peer,
                ratio(c, f),
                c.ours_mb,
                c.peer_mb
            );
        }
    }
    if !skipped.is_empty() {
        text += "\nNot measured:\n\n";
        skipped.iter().for_each(|(row, why)| text += &format!("- {row}: {why}\n"));
    }
    text + "\nCommand lines:\n\n```\n" + &command_lines(compared) + "```\n"
}

/// That of planish once for all peers of a row.
fn command_lines(compared: &[Compared]) -> String {
    let mut lines: Vec<&str> = compared.iter().flat_map(|c| [&c.ours_line[..], &c.peer_line]).collect();
    let mut seen = std::collections::BTreeSet::new();
    lines.retain(|line| seen.insert(*line));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    fn compared(id: &str, ours: &[f64], peer: &[f64]) -> Compared {
        let figure = Figure { name: String::new(), ours: ours.to_vec(), peer: peer.to_vec() };
        Compared {
            row: rows::of(id).unwrap(),
            peer: "other",
            figures: vec![figure],
            ours_mb: 100.0,
            peer_mb: 200.0,
            ours_line: "planish bench".into(),
            peer_line: "other bench".into(),
        }
    }

    #[test]
    fn more_than_one_is_ahead() {
        let speed = compared("lora-f32-b1", &[30.0, 10.0, 20.0], &[10.0]);
        assert_eq!(
            lines(&speed),
            [
                "lora-f32-b1: 20.0 (10.0 to 30.0) tokens/s, other 10.0 (10.0 to 10.0): 2.00 times; 100 MB, 200 MB"
            ]
        );
        let seconds = compared("load-q4_1", &[0.25, 0.75], &[2.0]);
        assert_eq!(ratio(&seconds, &seconds.figures[0]), 4.0);
    }
    #[test]
    fn planish_is_named_once_for_all_peers() {
        let of = |line: &str| Compared { peer_line: line.into(), ..compared("gemm", &[1.0], &[1.0]) };
        assert_eq!(command_lines(&[of("one"), of("two")]), "planish bench\none\ntwo\n");
    }
}
