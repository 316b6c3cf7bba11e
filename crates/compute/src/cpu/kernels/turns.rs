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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    use super::*;
    use crate::cpu::pool::Pool;

    const STEPS: usize = 5;

    /// Three chains of tasks, as task % 3; says which steps were taken, in their order.
    fn run(threads: usize, tasks: usize, fail: usize) -> Vec<(usize, usize)> {
        let (mut turns, taken) = (Turns::default(), Mutex::new(Vec::new()));
        let turns = turns.start(tasks);
        Pool::new(threads).unwrap().run(tasks, &|task, _| {
            let mut turn = turns.of(task, task.checked_sub(3));
            for step in 0..STEPS {
                assert!(task != fail || step < 2, "task {task}");
                turn.take(|| taken.lock().unwrap().push((task, step)));
            }
        });
        taken.into_inner().unwrap()
    }

    #[test]
    fn a_step_comes_after_the_same_step_of_the_task_before() {
        for threads in [1, 2, 3, 8] {
            let taken = run(threads, 60, usize::MAX);
            assert_eq!(taken.len(), 60 * STEPS);
            for (chain, step) in (0..3).flat_map(|c| (0..STEPS).map(move |s| (c, s))) {
                let order = taken.iter().filter(|(t, s)| t % 3 == chain && *s == step).map(|(t, _)| *t);
                assert!(
                    order.eq((chain..60).step_by(3)),
                    "step {step} of chain {chain} on {threads} threads"
                );
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_task_that_failed() {
        for threads in [1, 2, 8] {
            assert!(catch_unwind(AssertUnwindSafe(|| run(threads, 60, 30))).is_err());
        }
    }
}
