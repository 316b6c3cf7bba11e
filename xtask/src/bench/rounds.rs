//! planish and its peers in turns, and what comes out of it.

use std::collections::BTreeMap;

use anyhow::{Error, Result, anyhow};

use super::rows::Row;

/// The values of one figure of a row, one a round.
#[derive(Default)]
pub struct Figure {
    /// Its name where a row has several.
    pub name: String,
    /// Those of planish.
    pub ours: Vec<f64>,
    /// Those of the peer.
    pub peer: Vec<f64>,
}

/// A row beside one peer.
pub struct Compared {
    pub row: &'static Row,
    pub peer: &'static str,
    pub figures: Vec<Figure>,
    /// The most memory of a process, in MB.
    pub ours_mb: f64,
    pub peer_mb: f64,
    /// The command lines.
    pub ours_line: String,
    pub peer_line: String,
}

/// What a process measured.
pub struct Measured {
    pub values: BTreeMap<String, f64>,
    pub peak_mb: f64,
}

/// planish or a peer.
pub struct Side {
    pub name: &'static str,
    pub line: Vec<String>,
    /// One a round.
    values: Vec<BTreeMap<String, f64>>,
    peak_mb: f64,
    /// Why it is left out of the rounds that are left.
    failed: Option<Error>,
}

impl Side {
    pub fn new(name: &'static str, line: Vec<String>) -> Side {
        Side { name, line, values: Vec::new(), peak_mb: 0.0, failed: None }
    }
}

/// Runs the rounds: in each every side has one process, in order, and in every second one in reverse order, so that a
/// slow minute of the machine meets all. planish is the first side. A peer that fails is left out from then on; when
/// planish fails, or all peers have, the rest is not run.
pub fn run(rounds: usize, sides: &mut [Side], process: &mut dyn FnMut(&Side) -> Result<Measured>) {
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let side = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let rest = sides.iter().skip(1).all(|peer| peer.failed.is_some());
            if sides[0].failed.is_some() || rest {
                return;
            }
            let side = &mut sides[side];
            if side.failed.is_some() {
                continue;
            }
            match process(side) {
                Ok(measured) => {
                    side.values.push(measured.values);
                    side.peak_mb = side.peak_mb.max(measured.peak_mb);
                }
                Err(e) => side.failed = Some(e),
            }
        }
    }
}

/// planish, the first side, beside each peer, by the peer's name; or why they cannot be compared.
pub fn compare(row: &'static Row, sides: Vec<Side>) -> Vec<(&'static str, Result<Compared>)> {
    let mut sides = sides.into_iter();
    let Some(ours) = sides.next() else { return Vec::new() };
    sides.map(|peer| (peer.name, beside(row, &ours, peer))).collect()
}

fn beside(row: &'static Row, ours: &Side, peer: Side) -> Result<Compared> {
    if let Some(e) = &ours.failed {
        return Err(anyhow!("planish: {e:#}"));
    }
    if let Some(e) = peer.failed {
        return Err(e);
    }
    let figures = figures(&ours.values, &peer.values);
    if figures.is_empty() {
        return Err(anyhow!("planish and {} have no figure in common", peer.name));
    }
    Ok(Compared {
        row,
        peer: peer.name,
        figures,
        ours_mb: ours.peak_mb,
        peer_mb: peer.peak_mb,
        ours_line: ours.line.join(" "),
        peer_line: peer.line.join(" "),
    })
}

/// What both sides have measured.
fn figures(ours: &[BTreeMap<String, f64>], theirs: &[BTreeMap<String, f64>]) -> Vec<Figure> {
    let of = |rounds: &[BTreeMap<String, f64>], name: &str| -> Vec<f64> {
        rounds.iter().filter_map(|values| values.get(name).copied()).collect()
    };
    let names = ours.first().into_iter().flat_map(BTreeMap::keys);
    let all = names.map(|name| Figure { name: name.clone(), ours: of(ours, name), peer: of(theirs, name) });
    all.filter(|f| !f.peer.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    fn sides() -> Vec<Side> {
        ["planish", "one", "two"].map(|name| Side::new(name, vec![name.to_owned()])).into()
    }

    fn measured(name: &str, value: f64) -> Measured {
        Measured { values: BTreeMap::from([(name.to_owned(), value)]), peak_mb: value }
    }

    #[test]
    fn all_take_turns_and_every_second_round_is_reversed() {
        let (mut sides, mut order) = (sides(), Vec::new());
        run(3, &mut sides, &mut |side| {
            order.push(side.name);
            Ok(measured("", order.len() as f64))
        });
        assert_eq!(order, ["planish", "one", "two", "two", "one", "planish", "planish", "one", "two"]);
        let all = compare(rows::of("gemm").unwrap(), sides);
        let compared = all[1].1.as_ref().unwrap();
        assert_eq!((all[1].0, &compared.ours_line[..], &compared.peer_line[..]), ("two", "planish", "two"));
        assert_eq!(compared.figures[0].ours, [1.0, 6.0, 7.0]);
        assert_eq!(compared.figures[0].peer, [3.0, 4.0, 9.0]);
        assert_eq!((compared.ours_mb, compared.peer_mb), (7.0, 9.0));
    }

    #[test]
    fn a_peer_that_fails_leaves_the_others_alone() {
        let (mut sides, mut order) = (sides(), Vec::new());
        run(2, &mut sides, &mut |side| {
            order.push(side.name);
            if side.name == "one" { Err(anyhow!("broken")) } else { Ok(measured("", 1.0)) }
        });
        assert_eq!(order, ["planish", "one", "two", "two", "planish"]);
        let all = compare(rows::of("gemm").unwrap(), sides);
        assert_eq!(all[0].1.as_ref().err().unwrap().to_string(), "broken");
        assert_eq!(all[1].1.as_ref().unwrap().figures[0].peer.len(), 2);
    }

    #[test]
    fn without_planish_or_peers_nothing_more_runs() {
        for (fails, runs) in [(&["planish"][..], 1), (&["one", "two"], 3)] {
            let (mut sides, mut n) = (sides(), 0);
            run(5, &mut sides, &mut |side| {
                n += 1;
                if fails.contains(&side.name) { Err(anyhow!("broken")) } else { Ok(measured("", 1.0)) }
            });
            assert_eq!(n, runs, "{fails:?}");
            assert!(compare(rows::of("gemm").unwrap(), sides).iter().all(|(_, compared)| compared.is_err()));
        }
    }

    #[test]
    fn only_what_both_measured_is_compared() {
        let mut sides = sides();
        let names = BTreeMap::from([("planish", "a"), ("one", "a"), ("two", "b")]);
        run(1, &mut sides, &mut |side| Ok(measured(names[side.name], 2.0)));
        let all = compare(rows::of("gemm").unwrap(), sides);
        assert_eq!(all[0].1.as_ref().unwrap().figures[0].name, "a");
        assert_eq!(all[1].1.as_ref().err().unwrap().to_string(), "planish and two have no figure in common");
    }
}
