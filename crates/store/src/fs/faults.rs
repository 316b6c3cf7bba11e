//! Faults on purpose: the n-th call that changes the disk fails, is cut short, or is where the process dies; and a
//! record of all calls. Only in builds with the feature `faults`, which only tests ask for.
//!
//! There is one counter a process. Tests that arm it, or record, must not run beside others that change the disk.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::disk::Op;
use crate::Error;

pub use super::disk::Call;

/// What happens to the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails: no space left.
    NoSpace,
    /// It fails: the device.
    Io,
    /// It fails: not permitted.
    Denied,
    /// It fails: the user's share of the disk is used up.
    Quota,
    /// A signal comes before it does anything; whoever made it must make it again.
    Interrupted,
    /// If it is a write of two bytes or more, it writes only the first half; the rest must follow.
    Short,
    /// The process is killed before it.
    KillBefore,
    /// The process is killed after it.
    KillAfter,
}

/// All faults, with the names that [`Plan::from_str`] takes.
pub static FAULTS: &[(&str, Fault)] = &[
    ("enospc", Fault::NoSpace),
    ("eio", Fault::Io),
    ("eacces", Fault::Denied),
    ("edquot", Fault::Quota),
    ("eintr", Fault::Interrupted),
    ("short", Fault::Short),
    ("kill-before", Fault::KillBefore),
    ("kill-after", Fault::KillAfter),
];

/// One fault at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which call, counted from 1; with 0 nothing happens.
    pub call: u64,
    /// What happens to it.
    pub fault: Fault,
}

impl FromStr for Plan {
    type Err = Error;

    /// `N:NAME`, such as `12:enospc`.
    fn from_str(text: &str) -> Result<Plan, Error> {
        let parsed = text.split_once(':').and_then(|(call, name)| {
            let (_, fault) = FAULTS.iter().find(|(known, _)| *known == name)?;
            Some(Plan { call: call.parse().ok()?, fault: *fault })
        });
        let known = || FAULTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        parsed.ok_or_else(|| Error::usage("fault", format!("{text:?} is not N:NAME with one of {}", known())))
    }
}

/// A call that was made and succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub call: Call,
    /// What it is about.
    pub path: PathBuf,
    /// Where a rename leads, or what a link names.
    pub other: Option<PathBuf>,
    /// What a write wrote.
    pub bytes: Vec<u8>,
}

struct State {
    plan: Option<Plan>,
    count: u64,
    record: Option<Vec<Step>>,
}

static STATE: Mutex<State> = Mutex::new(State { plan: None, count: 0, record: None });

fn state() -> MutexGuard<'static, State> {
    // A test that failed elsewhere left it whole: each change is one assignment.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts calls from here on, and lets the planned one fail.
pub fn arm(plan: Plan) {
    let mut state = state();
    state.plan = Some(plan);
    state.count = 0;
}

/// Lets nothing fail from here on; the count goes on.
pub fn disarm() {
    state().plan = None;
}

/// Calls since [`arm`].
pub fn count() -> u64 {
    state().count
}

/// Runs `run` and gives the calls it made, in order. A write is written down as whole as it was asked for.
pub fn record<T>(run: impl FnOnce() -> T) -> (T, Vec<Step>) {
    state().record = Some(Vec::new());
    let done = run();
    (done, state().record.take().unwrap_or_default())
}

/// Stands between [`disk`](super::disk) and the system.
pub(super) fn call<T>(op: Op<'_>, run: &mut dyn FnMut(&[u8]) -> io::Result<T>) -> io::Result<T> {
    let fault = next();
    let failed = |errno: Errno| Err(io::Error::from(errno));
    let mut bytes = op.bytes;
    match fault {
        Some(Fault::NoSpace) => return failed(Errno::NOSPC),
        Some(Fault::Io) => return failed(Errno::IO),
        Some(Fault::Denied) => return failed(Errno::ACCESS),
        Some(Fault::Quota) => return failed(Errno::DQUOT),
        Some(Fault::Interrupted) => return failed(Errno::INTR),
        Some(Fault::KillBefore) => kill(),
        Some(Fault::Short) if bytes.len() > 1 => bytes = bytes.split_at(bytes.len() / 2).0,
        Some(Fault::Short | Fault::KillAfter) | None => {}
    }
    let done = run(bytes);
    if fault == Some(Fault::KillAfter) {
        kill();
    }
    if let (Ok(_), Some(record)) = (&done, &mut state().record) {
        let (path, other) = (op.path.to_path_buf(), op.other.map(PathBuf::from));
        record.push(Step { call: op.call, path, other, bytes: bytes.to_vec() });
    }
    done
}

/// Counts a call and says what is to happen to it.
fn next() -> Option<Fault> {
    let mut state = state();
    state.count = state.count.saturating_add(1);
    let count = state.count;
    state.plan.filter(|plan| plan.call == count).map(|plan| plan.fault)
}

/// As the kernel does it to a process that uses too much memory: nothing of it runs any more.
fn kill() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The signal comes before the call returns; should it be late, wait for it.
    loop {
        std::thread::park();
    }
}
