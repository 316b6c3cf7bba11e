//! A small pool of workers that spin for a moment and then park.
//!
//! `run(tasks, f)` calls `f(task, scratch)` for every task; any worker may take any task, so results must depend on
//! the task alone. Tasks begin in the order of their numbers, so one may wait for what an earlier one does. The caller
//! works too. One run costs about a microsecond while the workers are awake.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use planish_base::{Error, Result};

/// Memory that a worker keeps between tasks: grown on demand, never shrunk.
#[derive(Default)]
pub struct Scratch {
    words: Vec<[f32; 16]>,
}

impl Scratch {
    /// `n` floats of arbitrary content, from the start of a cache line.
    pub fn floats(&mut self, n: usize) -> &mut [f32] {
        let words = n.div_ceil(16) + 1;
        if self.words.len() < words {
            self.words.resize(words, [0.0; 16]);
        }
        let all = self.words.as_flattened_mut();
        let first = all.as_ptr().align_offset(64);
        &mut all[first..first + n]
    }
}

type Job<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

struct Shared {
    /// Counts runs; a change tells the workers that `job` is new. Odd after shutdown was asked.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<(*const Job<'static>, usize)>>,
    next_task: AtomicUsize,
    /// Workers that have not finished the current run.
    busy: AtomicUsize,
    parked: Mutex<usize>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spins: u32,
}

// SAFETY: `job` is written by `run` only while no worker is busy, and read by workers only between the epoch's
// increase and their decrease of `busy`; both are synchronised by those atomics.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure that outlives the run.
unsafe impl Send for Shared {}

const STOP: usize = usize::MAX;
const SPINS: u32 = 20_000;

/// The workers of one backend.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    scratch: Scratch,
}

impl Pool {
    /// A pool that works with `threads` threads, the caller among them.
    ///
    /// # Errors
    /// Kind `Resource` when the system starts no more threads.
    pub fn new(threads: usize) -> Result<Pool> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next_task: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            parked: Mutex::new(0),
            wake: Condvar::new(),
            panic: Mutex::new(None),
            // With more threads than CPUs a spinning worker keeps the one that has the task from running.
            spins: if threads > cpus { 0 } else { SPINS },
        });
        // Made before its workers, so that those that could be started are joined when one could not.
        let mut pool = Pool { shared, workers: Vec::new(), scratch: Scratch::default() };
        for _ in 1..threads {
            let shared = pool.shared.clone();
            let started = std::thread::Builder::new().spawn(move || worker(&shared));
            let failed = |e| Error::resource("threads", format!("cannot start {threads} threads: {e}"));
            pool.workers.push(started.map_err(|e| failed(e).with_hint("give fewer with --threads"))?);
        }
        Ok(pool)
    }

    /// Threads that work, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for every task in 0..tasks; returns when all are done. A panic in a task is passed on.
    pub fn run(&mut self, tasks: usize, f: &Job<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            return (0..tasks).for_each(|task| f(task, &mut self.scratch));
        }
        let shared = &*self.shared;
        // SAFETY: no worker is busy, so nobody reads `job`. The lifetime is erased only until `busy` is 0 again,
        // which this function waits for before it returns, also when a task panics.
        unsafe {
            let job = std::mem::transmute::<*const Job<'_>, *const Job<'static>>(f);
            *shared.job.get() = Some((job, tasks));
        }
        shared.next_task.store(0, Ordering::Relaxed);
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if *lock(&shared.parked) > 0 {
            shared.wake.notify_all();
        }
        take_tasks(shared, f, tasks, &mut self.scratch);
        let mut spins = 0;
        while shared.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < shared.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.epoch.store(STOP, Ordering::SeqCst);
        drop(lock(&self.shared.parked));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics, so joining cannot fail.
            let _ = worker.join();
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn worker(shared: &Shared) {
    let mut scratch = Scratch::default();
    let mut seen = 0;
    loop {
        seen = wait_for_epoch(shared, seen);
        if seen == STOP {
            return;
        }
        // SAFETY: the epoch has changed, so `run` has set the job and waits until this worker is no longer busy.
        let (job, tasks) = unsafe { (*shared.job.get()).expect("run sets the job before the epoch") };
        // SAFETY: as above, the closure is alive.
        take_tasks(shared, unsafe { &*job }, tasks, &mut scratch);
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

fn wait_for_epoch(shared: &Shared, seen: usize) -> usize {
    for _ in 0..shared.spins {
        let epoch = shared.epoch.load(Ordering::Acquire);
        if epoch != seen {
            return epoch;
        }
        std::hint::spin_loop();
    }
    let mut parked = lock(&shared.parked);
    *parked += 1;
    loop {
        // The epoch is read under the lock that `run` takes after changing it, so no wake-up is lost.
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            *parked -= 1;
            return epoch;
        }
        parked = shared.wake.wait(parked).unwrap_or_else(PoisonError::into_inner);
    }
}

fn take_tasks(shared: &Shared, f: &Job<'_>, tasks: usize, scratch: &mut Scratch) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let task = shared.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            f(task, scratch);
        }
    }));
    if let Err(panic) = result {
        shared.next_task.store(tasks, Ordering::Relaxed);
        lock(&shared.panic).get_or_insert(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|t, _| {
                    counts[t].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_still_works() {
        let mut pool = Pool::new(3).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(64, &|t, _| assert!(t != 40, "task {t}"))));
        assert!(caught.is_err());
        let n = AtomicUsize::new(0);
        pool.run(64, &|_, _| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.into_inner(), 64);
    }
}
