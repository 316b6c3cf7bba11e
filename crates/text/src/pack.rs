//! Packing: several whole examples in the place of one sequence, each a segment of its own.
//!
//! Examples are never cut and never see each other, so packing changes how many of them a step holds, not what any
//! of them gives. Batches have no padding anyway; what packing makes even is the number of tokens of a step.

use std::collections::BTreeSet;

/// Examples that are packed together: neighbours in the data stay near each other, and the work grows with the data,
/// not with its square.
pub const WINDOW: usize = 1_000;

/// Packs examples of these lengths into sequences of at most `context` tokens: within each window of 1,000 the longest
/// first, each where the least room is left (best-fit decreasing; Johnson, 1974). Gives the indices of each
/// sequence, ascending, sequences by their first index: a pure function of its arguments. What is longer than the
/// context has a sequence of its own.
pub fn pack(lengths: &[usize], context: usize) -> Vec<Vec<usize>> {
    let mut packs = Vec::new();
    for (w, window) in lengths.chunks(WINDOW).enumerate() {
        let mut found = pack_window(window, w * WINDOW, context);
        found.sort_unstable();
        packs.extend(found);
    }
    packs
}

fn pack_window(lengths: &[usize], first: usize, context: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(lengths[*i]), *i));
    let mut packs: Vec<Vec<usize>> = Vec::new();
    // (room left, pack): the first that is large enough is the tightest, of equal ones the oldest.
    let mut rooms = BTreeSet::new();
    for i in order {
        let length = lengths[i];
        let (room, pack) = match rooms.range((length, 0)..).next().copied() {
            Some(tightest) => {
                rooms.remove(&tightest);
                tightest
            }
            None => {
                packs.push(Vec::new());
                (context.max(length), packs.len() - 1)
            }
        };
        packs[pack].push(first + i);
        rooms.insert((room - length, pack));
    }
    packs.iter_mut().for_each(|p| p.sort_unstable());
    packs
}
