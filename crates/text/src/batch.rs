//! Which example comes when, and examples laid end to end as one ragged batch.

use planish_base::rng::{Purpose, Stream};

use crate::Example;

/// The order of `n` examples in `epoch`: a pure function of its arguments.
pub fn order(seed: u64, epoch: u32, n: usize) -> Vec<usize> {
    Stream::new(seed, Purpose::Shuffle, epoch).permutation(n)
}

/// Holds `held_out` of `n` examples back (all of them if there are fewer). Both lists ascend: `(train, eval)`.
pub fn split(seed: u64, n: usize, held_out: usize) -> (Vec<usize>, Vec<usize>) {
    let drawn = Stream::new(seed, Purpose::Split, 0).permutation(n);
    let (eval, train) = drawn.split_at(held_out.min(n));
    let (mut eval, mut train) = (eval.to_vec(), train.to_vec());
    eval.sort_unstable();
    train.sort_unstable();
    (train, eval)
}

/// A run of rows that belong to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Row of the first token.
    pub start: u32,
    /// Number of tokens.
    pub len: u32,
}

/// Sequences laid end to end. Row `r` holds `tokens[r]` and predicts `tokens[r + 1]` of the same segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its own segment, from 0.
    pub positions: Vec<u32>,
    /// One a sequence, in row order.
    pub segments: Vec<Segment>,
    /// Rows whose next token is trained, ascending.
    pub target_rows: Vec<u32>,
    /// The token to predict at each of `target_rows`.
    pub targets: Vec<u32>,
    /// For each segment, its index in the list that [`batch`] was given.
    pub examples: Vec<usize>,
}

/// Lays `examples` end to end. The last token of a segment has a row too (without a target); no example is padded.
pub fn batch(examples: &[&Example]) -> Batch {
    let mut b = Batch::default();
    for (index, example) in examples.iter().enumerate() {
        let start = b.tokens.len() as u32;
        b.segments.push(Segment { start, len: example.ids.len() as u32 });
        b.examples.push(index);
        for (i, id) in example.ids.iter().enumerate() {
            b.tokens.push(*id);
            b.positions.push(i as u32);
            if i > 0 && example.trained.get(i) == Some(&true) {
                b.target_rows.push(start + i as u32 - 1);
                b.targets.push(*id);
            }
        }
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(ids: &[u32], trained: &[bool]) -> Example {
        Example { ids: ids.to_vec(), trained: trained.to_vec(), place: "t:1".into() }
    }

    #[test]
    fn targets_never_cross_a_segment() {
        let a = example(&[1, 2, 3], &[false, true, true]);
        let b = example(&[4, 5, 6, 7], &[false, false, true, false]);
        let got = batch(&[&a, &b]);
        assert_eq!(got.tokens, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(got.positions, [0, 1, 2, 0, 1, 2, 3]);
        assert_eq!(got.segments, [Segment { start: 0, len: 3 }, Segment { start: 3, len: 4 }]);
        assert_eq!((got.target_rows, got.targets), (vec![0, 1, 4], vec![2, 3, 6]));
        assert_eq!(got.examples, [0, 1]);
    }

    #[test]
    fn order_and_split_are_functions_of_their_arguments() {
        assert_eq!(order(1, 2, 50), order(1, 2, 50));
        assert_ne!(order(1, 2, 50), order(1, 3, 50));
        let (train, eval) = split(7, 10, 3);
        assert_eq!((train.len(), eval.len()), (7, 3));
        let mut all = [train.clone(), eval.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert!(train.is_sorted() && eval.is_sorted());
        assert_eq!(split(7, 3, 9).1, [0, 1, 2]);
        assert_eq!(split(7, 0, 1), (vec![], vec![]));
    }
}
