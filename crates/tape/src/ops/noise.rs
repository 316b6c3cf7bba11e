//! Noise on embeddings while training (NEFTune; Jain et al., 2023).

use planish_compute::View;
use planish_compute::call::Noise;

use super::Example;
use crate::tape::{Mode, Tape, Var};

/// Adds uniform noise of +-alpha / sqrt(rows of the segment * width) to x [n, width], in place; x itself where the pass
/// does not train. `key` is [1, 4] words: seed low, seed high, step, micro-batch.
pub fn noise(t: &mut Tape, x: Var, segments: View, key: View, alpha: f32) -> Var {
    if t.mode() != Mode::Train {
        return x;
    }
    let view = t.view(x);
    t.call(Noise { key, segments, x: view, alpha });
    // dx = dy
    t.push_in_place(x, |_, _| {})
}

/// Two segments of different length, and a row of none between them.
pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let (table, ids) = (e.param(6, 70), e.words(8, 1, &[2, 0, 5, 2, 1, 3, 4, 4]));
    let (segments, key) = (e.words(2, 4, &[0, 2, 0, 0, 3, 5, 0, 0]), e.words(1, 4, &[7, 0, 3, 1]));
    let x = super::embed(t, ids, &table, &[]);
    noise(t, x, segments, key, 5.0)
}
