//! Turns of tasks that add to the same sums: a task adds its terms when the task before it has added its own, so that
//! sums have a fixed order on any number of threads.
//!
//! A task may wait only for tasks of smaller numbers. The pool starts tasks in the order of their numbers, so the
//! first one that has not ended never waits, and there is no deadlock.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many steps each task of a run has done.
#[derive(Default)]
pub struct Turns {
    done: Vec<AtomicUsize>,
}

impl Turns {
    /// Before a run of `tasks` tasks. The memory is kept from run to run.
    pub fn start(&mut self, tasks: usize) -> &Turns {
        if self.done.len() < tasks {
            self.done.resize_with(tasks, AtomicUsize::default);
        }
        self.done.iter_mut().for_each(|d| *d.get_mut() = 0);
        self
    }

    /// The turns of a task that comes after the task `before`.
    pub fn of(&self, task: usize, before: Option<usize>) -> Turn<'_> {
        assert!(before.is_none_or(|b| b < task), "task {task} would wait for one that may not have begun");
        Turn { own: &self.done[task], before: before.map(|b| &self.done[b]), step: 0 }
    }
}

/// The turns of one task.
pub struct Turn<'a> {
    own: &'a AtomicUsize,
    before: Option<&'a AtomicUsize>,
    step: usize,
}

impl Turn<'_> {
    /// Runs `f`, the next step, after the same step of the task before.
    pub fn take(&mut self, f: impl FnOnce()) {
        const SPINS: usize = 1000;
        let done = |d: &AtomicUsize| d.load(Ordering::Acquire) > self.step;
        let mut spins = 0;
        while !self.before.is_none_or(done) {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        f();
        self.step += 1;
        self.own.store(self.step, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    /// The task has ended, perhaps by a panic that the pool passes on: nobody has to wait for it any more.
    fn drop(&mut self) {
        self.own.store(usize::MAX, Ordering::Release);
    }
}
