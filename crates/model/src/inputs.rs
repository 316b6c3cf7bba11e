//! The buffers that hold what changes from pass to pass.

use planish_base::{Result, TypeId};
use planish_compute::call::SEGMENT_WORDS;
use planish_compute::{Backend, Home, View};
use planish_tape::ops::Targets;

use crate::pass::BatchViews;

/// A ragged batch on the host. Row r holds token `ids[r]` at `positions[r]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ragged<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Positions in their sequences.
    pub positions: &'a [u32],
    /// First row, rows, first position, KV slot of each segment.
    pub segments: &'a [[u32; SEGMENT_WORDS]],
    /// Rows whose prediction counts, ascending.
    pub rows: &'a [u32],
    /// What they should predict; empty where only logits are asked for.
    pub targets: &'a [u32],
}

/// Device buffers for batches up to a capacity.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    ids: Home,
    positions: Home,
    segments: Home,
    rows: Home,
    targets: Home,
    normaliser: Home,
}

impl Inputs {
    /// Bytes of the buffers for up to `tokens` tokens, each of which may be a segment and may be trained.
    pub fn bytes(tokens: usize) -> u64 {
        (tokens * (4 + SEGMENT_WORDS) * 4) as u64
    }

    /// Buffers for up to `tokens` tokens.
    ///
    /// # Errors
    /// Kind `Resource` without memory.
    pub fn new(backend: &mut dyn Backend, tokens: usize) -> Result<Inputs> {
        let mut words = |n: usize| backend.alloc((n * 4) as u64);
        Ok(Inputs {
            ids: words(tokens)?,
            positions: words(tokens)?,
            segments: words(tokens * SEGMENT_WORDS)?,
            rows: words(tokens)?,
            targets: words(tokens)?,
            normaliser: words(1)?,
        })
    }

    /// Views of the buffers for a batch of this shape: the pass's inputs and its targets.
    pub fn views(&self, batch: &Ragged) -> (BatchViews, Targets) {
        let column = |home, n| View::new(home, 0, n, 1, TypeId::I32);
        let views = BatchViews {
            ids: column(self.ids, batch.ids.len()),
            positions: column(self.positions, batch.ids.len()),
            segments: View::new(self.segments, 0, batch.segments.len(), SEGMENT_WORDS, TypeId::I32),
        };
        let targets = Targets {
            rows: column(self.rows, batch.rows.len()),
            ids: column(self.targets, batch.targets.len()),
            normaliser: View::new(self.normaliser, 0, 1, 1, TypeId::F32),
        };
        (views, targets)
    }

    /// Uploads a batch. `normaliser` is 1 / trained tokens of the whole optimizer step.
    pub fn fill(&self, backend: &mut dyn Backend, batch: &Ragged, normaliser: f32) {
        let (views, targets) = self.views(batch);
        backend.upload_u32(&views.ids, batch.ids);
        backend.upload_u32(&views.positions, batch.positions);
        backend.upload_u32(&views.segments, batch.segments.as_flattened());
        backend.upload_u32(&targets.rows, batch.rows);
        backend.upload_u32(&targets.ids, batch.targets);
        backend.upload_f32(&targets.normaliser, &[normaliser]);
    }
}
