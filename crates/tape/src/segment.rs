//! Values of layers that are computed again in the backward pass, so that they need not be kept (gradient
//! checkpointing; Chen et al., 2016).

use std::collections::BTreeSet;
use std::ops::Range;

use planish_compute::{Call, Home, View};

/// What a tape recorded of one layer.
pub struct Segment {
    pub layer: usize,
    pub calls: Range<usize>,
    pub temps: Range<u32>,
    pub nodes: Range<usize>,
}

impl Segment {
    /// Moves a view of one of the `moved` temporaries of the layer to those that begin at `first`.
    pub fn move_to(&self, first: u32, moved: &BTreeSet<u32>, v: &mut View) {
        if let Home::Temp(t) = v.home
            && moved.contains(&t)
        {
            v.home = Home::Temp(t - self.temps.start + first);
        }
    }

    /// Running a layer twice must be the same as running it once, and its inputs must still be there.
    pub fn check_repeatable(&self, calls: &[Call]) {
        for call in &calls[self.calls.clone()] {
            let own = |v: &View| matches!(v.home, Home::Temp(t) if self.temps.contains(&t));
            call.visit(&mut |_| {}, &mut |v| assert!(own(v), "{} writes beyond its layer", call.name()));
        }
    }
}

/// The calls that cost next to nothing beside the products of their layer, and those that change in place what one of
/// them wrote.
pub fn cheap(calls: &[Call]) -> Vec<Call> {
    let is_cheap = |call: &Call| matches!(call, Call::RmsNorm(_) | Call::Gated(_) | Call::Dropout(_));
    let mut again = BTreeSet::new();
    let mut chosen = Vec::new();
    for call in calls {
        let written = temps(call, Views::Written);
        if is_cheap(call) || written.iter().any(|t| again.contains(t)) {
            again.extend(written);
            chosen.push(*call);
        }
    }
    chosen
}

/// The temporaries that calls write.
pub fn written(calls: &[Call]) -> BTreeSet<u32> {
    calls.iter().flat_map(|c| temps(c, Views::Written)).collect()
}

/// The calls, in order, that what follows needs: all but those whose results it never reads. The layer's own result is
/// such a one, since the next layer has long been differentiated.
pub fn needed(calls: Vec<Call>, follow: &[Call]) -> Vec<Call> {
    let mut read: BTreeSet<u32> = follow.iter().flat_map(|c| temps(c, Views::All)).collect();
    let mut kept: Vec<Call> = Vec::with_capacity(calls.len());
    for call in calls.into_iter().rev() {
        if temps(&call, Views::Written).iter().any(|t| read.contains(t)) {
            // What it writes may be what it changes in place.
            read.extend(temps(&call, Views::All));
            kept.push(call);
        }
    }
    kept.reverse();
    kept
}

#[derive(PartialEq)]
enum Views {
    All,
    Written,
}

fn temps(call: &Call, which: Views) -> Vec<u32> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    call.visit(&mut |v| reads.push(*v), &mut |v| writes.push(*v));
    if which == Views::All {
        writes.extend(reads);
    }
    writes.iter().filter_map(|v| if let Home::Temp(t) = v.home { Some(t) } else { None }).collect()
}
