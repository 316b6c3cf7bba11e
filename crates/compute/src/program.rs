//! A list of calls with its temporaries placed in one arena.

use crate::call::Call;
use crate::view::{Home, View};

/// Offsets in the arena are multiples of this, so that vector loads are aligned.
const ALIGN: u64 = 64;

/// What a call is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The pass.
    pub stage: Stage,
    /// The layer; none before the first and after the last.
    pub layer: Option<usize>,
}

/// The passes of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Computes values.
    #[default]
    Forward,
    /// Computes values again that were not kept.
    Recomputed,
    /// Computes gradients.
    Backward,
}

/// Calls whose views all point to real memory.
#[derive(Clone, Debug)]
pub struct Program {
    calls: Vec<Call>,
    /// In ascending order: a label holds from its call to the next label's.
    labels: Vec<(usize, Label)>,
    offsets: Vec<u64>,
    arena_bytes: u64,
}

impl Program {
    /// Gives each temporary the arena bytes from its first to its last use; those in `keep` stay until the end, so
    /// that they can be downloaded. `temps[i]` is the size in bytes of `Home::Temp(i)`.
    pub fn plan(mut calls: Vec<Call>, temps: &[u64], keep: &[View]) -> Program {
        let lives = lifetimes(&calls, temps.len(), keep);
        let (offsets, arena_bytes) = place(&lives, temps, calls.len());
        for call in &mut calls {
            call.visit_mut(&mut |v| *v = resolve(v, &offsets));
        }
        Program { calls, labels: Vec::new(), offsets, arena_bytes }
    }

    /// Says what the calls are part of: each label from the call with its number to the next label's. Numbers ascend.
    pub fn labelled(mut self, labels: Vec<(usize, Label)>) -> Program {
        self.labels = labels;
        self
    }

    /// What call `i` is part of.
    pub fn label(&self, i: usize) -> Label {
        let after = self.labels.partition_point(|(start, _)| *start <= i);
        after.checked_sub(1).map_or_else(Label::default, |at| self.labels[at].1)
    }

    /// The calls, in order.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Bytes of arena that the program needs.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Where a view of the unplanned list lies now.
    pub fn view(&self, v: &View) -> View {
        resolve(v, &self.offsets)
    }
}

fn resolve(v: &View, offsets: &[u64]) -> View {
    match v.home {
        Home::Temp(i) => View { home: Home::Arena, offset: v.offset + offsets[i as usize], ..*v },
        _ => *v,
    }
}

/// First and last call that touches a temporary.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

fn lifetimes(calls: &[Call], n_temps: usize, keep: &[View]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; n_temps];
    for (i, call) in calls.iter().enumerate() {
        let mut touch = |v: &View| {
            if let Home::Temp(t) = v.home {
                let life = lives[t as usize].get_or_insert(Life { first: i, last: i });
                life.last = i;
            }
        };
        let mut touches = Vec::new();
        call.visit(&mut |v| touch(v), &mut |v| touches.push(*v));
        touches.iter().for_each(touch);
    }
    for v in keep {
        if let Home::Temp(t) = v.home
            && let Some(life) = &mut lives[t as usize]
        {
            life.last = calls.len();
        }
    }
    lives
}

/// Walks the calls once; a temporary takes the smallest free gap that holds it, else the end of the arena.
fn place(lives: &[Option<Life>], temps: &[u64], n_calls: usize) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; temps.len()];
    let mut begins: Vec<Vec<usize>> = vec![Vec::new(); n_calls];
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); n_calls + 1];
    for (t, life) in lives.iter().enumerate() {
        if let Some(life) = life {
            begins[life.first].push(t);
            ends[life.last].push(t);
        }
    }
    let mut free = FreeList::default();
    for i in 0..n_calls {
        for &t in &begins[i] {
            offsets[t] = free.take(padded(temps[t]));
        }
        for &t in &ends[i] {
            free.give(offsets[t], padded(temps[t]));
        }
    }
    (offsets, free.end)
}

fn padded(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGN)
}

/// Gaps in ascending order of offset, never adjacent.
#[derive(Default)]
struct FreeList {
    gaps: Vec<(u64, u64)>,
    end: u64,
}

impl FreeList {
    fn take(&mut self, bytes: u64) -> u64 {
        let best = (0..self.gaps.len()).filter(|&i| self.gaps[i].1 >= bytes).min_by_key(|&i| self.gaps[i].1);
        match best {
            Some(i) => {
                let (offset, size) = self.gaps[i];
                if size == bytes {
                    self.gaps.remove(i);
                } else {
                    self.gaps[i] = (offset + bytes, size - bytes);
                }
                offset
            }
            None => {
                // A gap at the very end can be grown instead of left behind.
                let at = match self.gaps.last() {
                    Some(&(offset, size)) if offset + size == self.end => {
                        self.gaps.pop();
                        offset
                    }
                    _ => self.end,
                };
                self.end = at + bytes;
                at
            }
        }
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        let i = self.gaps.partition_point(|g| g.0 < offset);
        self.gaps.insert(i, (offset, bytes));
        if i + 1 < self.gaps.len() && self.gaps[i].0 + self.gaps[i].1 == self.gaps[i + 1].0 {
            self.gaps[i].1 += self.gaps[i + 1].1;
            self.gaps.remove(i + 1);
        }
        if i > 0 && self.gaps[i - 1].0 + self.gaps[i - 1].1 == self.gaps[i].0 {
            self.gaps[i - 1].1 += self.gaps[i].1;
            self.gaps.remove(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Zero;
    use planish_base::TypeId;

    fn temp(i: u32, elements: usize) -> View {
        View::new(Home::Temp(i), 0, 1, elements, TypeId::F32)
    }

    #[test]
    fn a_dead_temporary_gives_its_place_away_and_a_kept_one_does_not() {
        let calls: Vec<Call> = (0..4).map(|i| Zero { x: temp(i, 16) }.into()).collect();
        let p = Program::plan(calls.clone(), &[64; 4], &[]);
        assert_eq!(p.arena_bytes(), 64);
        let p = Program::plan(calls, &[64; 4], &[temp(1, 16)]);
        assert_eq!(p.arena_bytes(), 128);
        assert_ne!(p.view(&temp(1, 16)).offset, p.view(&temp(2, 16)).offset);
    }

    #[test]
    fn gaps_join_again() {
        let mut f = FreeList::default();
        let (a, b, c) = (f.take(64), f.take(64), f.take(64));
        f.give(a, 64);
        f.give(c, 64);
        f.give(b, 64);
        assert_eq!(f.gaps, [(0, 192)]);
        assert_eq!((f.take(256), f.end), (0, 256));
    }
}
