//! Every call that changes the disk fails in every way, is interrupted, is cut short, or is where the process dies.
//!
//! The counter of calls is the process's, so one test drives everything; to die, it starts itself again.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(
    clippy::disallowed_methods,
    reason = "the state on the disk is asked of std::fs; the child gets a variable"
)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use planish_store::fs::faults::{FAULTS, Fault, Plan, arm, count, disarm};
use planish_store::fs::{self, AppendLog, DirWriter, SealedDir};
use planish_store::{Error, Kind, Result};

mod common;

use common::fast_dir;

const FORMAT: &str = "test/1";
const FILES: &[(&str, usize)] = &[("weights", (1 << 20) + 5), ("slots", 3000), ("state.json", 10)];
const CHILD: &str = "PLANISH_STORE_TEST_CHILD";

fn commit(dir: &Path, step: u8) -> Result<()> {
    let mut writer = DirWriter::create(&dir.join(format!("step_{step}")))?;
    for &(name, len) in FILES {
        // In two halves, so that the longest takes more than one call.
        let half = vec![step; len / 2];
        let rest = vec![step; len - len / 2];
        writer.file(name, |out| {
            out.write_all(&half).and_then(|()| out.write_all(&rest)).map_err(fs::write_failed)
        })?;
    }
    writer.commit(FORMAT).map(drop)
}

/// A save as the trainer does it.
fn save_second(dir: &Path) -> Result<()> {
    commit(dir, 2)?;
    fs::remove_dir_all(&dir.join("step_1"))
}

/// The steps that are there; what bears the name of one must be whole.
fn steps(dir: &Path) -> Vec<u8> {
    let visible = |p: &PathBuf| !p.file_name().unwrap().to_str().unwrap().starts_with('.');
    let found = fs::list_dir(dir).unwrap().into_iter().filter(visible).map(|path| {
        let sealed = SealedDir::open(&path, FORMAT).unwrap();
        let step = *sealed.bytes("weights").unwrap().first().unwrap();
        for &(name, len) in FILES {
            assert_eq!(&sealed.bytes(name).unwrap()[..], vec![step; len]);
        }
        step
    });
    found.collect()
}

fn n_hidden(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().starts_with('.')).count()
}

/// Calls `run` with each fault at each of its calls, after `before` has made a fresh directory ready; `after` looks at
/// what came of it.
fn at_every_call(
    faults: &[Fault],
    before: impl Fn(&Path),
    run: impl Fn(&Path) -> Result<()>,
    after: impl Fn(&Path, Result<()>, Plan),
) -> u64 {
    let fresh = || {
        let dir = fast_dir();
        before(dir.path());
        dir
    };
    let dir = fresh();
    arm(Plan { call: 0, fault: Fault::Io });
    run(dir.path()).unwrap();
    let n_calls = count();
    for (call, &fault) in (1..=n_calls).flat_map(|call| faults.iter().map(move |fault| (call, fault))) {
        let dir = fresh();
        let plan = Plan { call, fault };
        arm(plan);
        let done = run(dir.path());
        disarm();
        assert!(count() >= call, "{plan:?} was not reached");
        after(dir.path(), done, plan);
    }
    n_calls
}

const FAIL: &[Fault] = &[Fault::NoSpace, Fault::Io, Fault::Denied, Fault::Quota];
const GO_ON: &[Fault] = &[Fault::Interrupted, Fault::Short];

fn is_resource(e: &Error, dir: &Path, plan: Plan) {
    let code = match plan.fault {
        Fault::NoSpace | Fault::Quota => "disk full",
        Fault::Denied => "permission",
        _ => "io",
    };
    assert_eq!((e.kind(), e.code()), (Kind::Resource, code), "{plan:?}: {e:?}");
    assert!(e.to_string().contains(dir.to_str().unwrap()) && e.hint().is_some(), "{plan:?}: {e:?}");
    assert!(!e.to_string().contains(".tmp-"), "{plan:?}: {e:?} names what the user does not know");
    assert_eq!(e.to_string().contains("bytes are free there"), code == "disk full", "{plan:?}: {e:?}");
}

fn sealed_directories() {
    let first = |dir: &Path| commit(dir, 1).unwrap();
    let n_calls = at_every_call(
        FAIL,
        first,
        |dir| commit(dir, 2),
        |dir, done, plan| {
            is_resource(&done.unwrap_err(), dir, plan);
            assert_eq!((steps(dir), n_hidden(dir)), (vec![1], 0), "{plan:?}");
            // The disk has room again.
            save_second(dir).unwrap();
            assert_eq!((steps(dir), n_hidden(dir)), (vec![2], 0), "{plan:?}");
        },
    );
    // Directory; three files and the manifest: made, written (one of them twice or more), synced; two syncs, a rename.
    assert!(n_calls >= 1 + 4 * 3 + 1 + 3, "{n_calls}");

    let both = |dir: &Path| (1..=2).for_each(|step| commit(dir, step).unwrap());
    at_every_call(
        FAIL,
        both,
        |dir| fs::remove_dir_all(&dir.join("step_1")),
        |dir, done, plan| {
            is_resource(&done.unwrap_err(), dir, plan);
            assert_eq!(steps(dir).last(), Some(&2), "{plan:?}");
            fs::remove_leftovers(dir).unwrap();
            assert_eq!(n_hidden(dir), 0);
        },
    );

    at_every_call(GO_ON, first, save_second, |dir, done, plan| {
        done.unwrap_or_else(|e| panic!("{plan:?}: {e:?}"));
        assert_eq!((steps(dir), n_hidden(dir)), (vec![2], 0), "{plan:?}");
    });
}

/// What a file that is replaced may hold after a failed call: the old content, or the new if only its name was not
/// made durable.
fn replaced_files() {
    let old = |dir: &Path| std::fs::write(dir.join("f"), b"old").unwrap();
    let replace =
        |dir: &Path| fs::write_atomic(&dir.join("f"), |out| out.write_all(b"new!").map_err(fs::write_failed));
    let n_calls = at_every_call(FAIL, old, replace, |dir, done, plan| {
        is_resource(&done.unwrap_err(), dir, plan);
        let content = std::fs::read(dir.join("f")).unwrap();
        let expected: &[u8] = if plan.call == 5 { b"new!" } else { b"old" };
        assert_eq!((content.as_slice(), n_hidden(dir)), (expected, 0), "{plan:?}");
    });
    assert_eq!(n_calls, 5, "create, write, sync, rename, sync of the directory");
    at_every_call(GO_ON, old, replace, |dir, done, plan| {
        done.unwrap_or_else(|e| panic!("{plan:?}: {e:?}"));
        assert_eq!(std::fs::read(dir.join("f")).unwrap(), b"new!");
    });
    let link = |dir: &Path| fs::symlink_replace(Path::new("new"), &dir.join("f"));
    at_every_call(FAIL, old, link, |dir, done, plan| {
        is_resource(&done.unwrap_err(), dir, plan);
        assert_eq!(n_hidden(dir), 0, "{plan:?}");
        assert!(dir.join("f").is_symlink() || std::fs::read(dir.join("f")).unwrap() == b"old", "{plan:?}");
    });
}

fn logs_and_directories() {
    let log = |dir: &Path| {
        let mut log = AppendLog::create(&dir.join("log"))?;
        log.append_line("one")?;
        log.sync()?;
        log.append_line("two")
    };
    at_every_call(
        FAIL,
        |_| {},
        log,
        |dir, done, plan| {
            is_resource(&done.unwrap_err(), dir, plan);
            let text = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(["", "one\n"].contains(&text.as_str()), "{plan:?}: {text:?}");
        },
    );
    at_every_call(
        GO_ON,
        |_| {},
        log,
        |dir, done, plan| {
            done.unwrap_or_else(|e| panic!("{plan:?}: {e:?}"));
            assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), "one\ntwo\n", "{plan:?}");
        },
    );
    let below = |dir: &Path| fs::check_writable_dir(&dir.join("a/b/c"));
    at_every_call(
        &FAIL[..3],
        |_| {},
        below,
        |dir, done, plan| {
            // The last call removes the probe, and has nothing to tell.
            if let Err(e) = done {
                is_resource(&e, dir, plan);
            } else {
                assert_eq!(n_hidden(&dir.join("a/b/c")), 1, "{plan:?}");
            }
            below(dir).unwrap();
        },
    );
}

/// The process dies at every call of a save; the next one finds the old step or the new, and can go on.
fn kills() {
    let dir = fast_dir();
    commit(dir.path(), 1).unwrap();
    arm(Plan { call: 0, fault: Fault::Io });
    save_second(dir.path()).unwrap();
    let n_calls = count();
    for (name, _) in FAULTS.iter().filter(|(name, _)| name.starts_with("kill")) {
        let mut n_left = 0;
        for call in 1..=n_calls {
            let dir = fast_dir();
            commit(dir.path(), 1).unwrap();
            let plan = format!("{call}:{name}");
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.env(CHILD, &plan).current_dir(dir.path()).stdout(Stdio::null());
            assert_eq!(child.status().unwrap().signal(), Some(9), "{plan}");
            assert!([&[1][..], &[1, 2], &[2]].contains(&&steps(dir.path())[..]), "{plan}");
            n_left += n_hidden(dir.path());
            fs::remove_leftovers(dir.path()).unwrap();
            if !steps(dir.path()).contains(&2) {
                commit(dir.path(), 2).unwrap();
            }
            if steps(dir.path()).contains(&1) {
                fs::remove_dir_all(&dir.path().join("step_1")).unwrap();
            }
            assert_eq!((steps(dir.path()), n_hidden(dir.path())), (vec![2], 0), "{plan}");
        }
        assert!(n_left > 10, "{n_left} left-overs: the kills did not meet the writer");
    }
    println!("{n_calls} calls in a save, killed before and after each");
}

#[test]
fn every_fault_at_every_call() {
    if let Some(plan) = std::env::var_os(CHILD) {
        arm(plan.to_str().unwrap().parse().unwrap());
        save_second(Path::new(".")).unwrap();
        panic!("still alive");
    }
    for wrong in ["", "3", "3:", "x:eio", "3:fire"] {
        assert_eq!(wrong.parse::<Plan>().unwrap_err().kind(), Kind::Usage, "{wrong}");
    }
    sealed_directories();
    replaced_files();
    logs_and_directories();
    kills();
}
