//! What a power loss leaves of a writer of sealed directories: at every call, in every state that the disk may be in.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::disallowed_methods, reason = "states of a disk are laid out with std::fs")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use planish_store::fs::faults::{Call, Step, record};
use planish_store::fs::{self, DirWriter, SealedDir};
use planish_testkit::power_loss::{Op, Tree, states};

mod common;

use common::fast_dir;

const FORMAT: &str = "test/1";
const RUN: &str = "run/checkpoints";

/// Of different sizes; a checkpoint and the next differ in every file.
const FILES: &[(&str, usize)] = &[("weights", 20_000), ("slots", 3000), ("state.json", 10)];

fn commit(dir: &Path, step: u8) {
    let mut writer = DirWriter::create(&dir.join(format!("step_{step}"))).unwrap();
    for &(name, len) in FILES {
        writer.file(name, |out| out.write_all(&vec![step; len]).map_err(fs::write_failed)).unwrap();
    }
    writer.commit(FORMAT).unwrap();
}

/// Two checkpoints and the removal of the first, with the numbers of calls after which each has been promised.
struct Run {
    ops: Vec<Op>,
    n_first: usize,
    n_second: usize,
}

impl Run {
    fn recorded() -> Run {
        let root = fast_dir();
        let dir = root.path().join(RUN);
        let ((), first) = record(|| {
            fs::create_dir_all(&dir).unwrap();
            commit(&dir, 1);
        });
        let ((), second) = record(|| commit(&dir, 2));
        let ((), removal) = record(|| fs::remove_dir_all(&dir.join("step_1")).unwrap());
        let n_first = first.len();
        let n_second = n_first + second.len();
        let steps = first.into_iter().chain(second).chain(removal);
        Run { ops: steps.map(|s| op(s, root.path())).collect(), n_first, n_second }
    }

    /// As if the call number `at` had not been made.
    fn without(&self, at: usize) -> Run {
        let mut ops = self.ops.clone();
        ops.remove(at);
        let before = |n: usize| n - usize::from(at < n);
        Run { ops, n_first: before(self.n_first), n_second: before(self.n_second) }
    }

    /// The first promise that some state breaks, and the number of states looked at.
    fn broken(&self, seen: &mut BTreeMap<Tree, Result<u8, String>>) -> (Option<String>, usize) {
        let mut n = 0;
        for k in 0..=self.ops.len() {
            for tree in states(&self.ops[..k]) {
                n += 1;
                let found = seen.entry(tree).or_insert_with_key(newest).clone();
                let allowed: &[u8] = match k {
                    k if k >= self.n_second => &[2],
                    k if k >= self.n_first => &[1, 2],
                    _ => &[0, 1],
                };
                let what = match found {
                    Ok(newest) if allowed.contains(&newest) => continue,
                    Ok(newest) => format!("the newest is {newest}, allowed are {allowed:?}"),
                    Err(torn) => torn,
                };
                return (Some(format!("after call {k} of {}: {what}", self.ops.len())), n);
            }
        }
        (None, n)
    }
}

fn op(step: Step, root: &Path) -> Op {
    let inside = |path: &Path| path.strip_prefix(root).unwrap().to_path_buf();
    let path = inside(&step.path);
    match step.call {
        Call::MakeDir => Op::MakeDir(path),
        Call::Create => Op::Create(path),
        Call::Write => Op::Write(path, step.bytes),
        Call::SyncFile => Op::SyncFile(path),
        Call::SyncDir => Op::SyncDir(path),
        Call::Rename => Op::Rename(path, inside(&step.other.unwrap())),
        Call::RemoveFile | Call::RemoveDir => Op::Remove(path),
        Call::Append | Call::Symlink => panic!("not a call of this writer: {step:?}"),
    }
}

/// Lays the state out on a real disk and opens what is there. The newest step, 0 without any; an error names a step
/// that is torn: what has its name must be whole.
fn newest(tree: &Tree) -> Result<u8, String> {
    let root = fast_dir();
    for (path, content) in tree {
        match content {
            _ if path.as_os_str().is_empty() => {}
            None => std::fs::create_dir(root.path().join(path)).unwrap(),
            Some(content) => std::fs::write(root.path().join(path), content).unwrap(),
        }
    }
    let dir = root.path().join(RUN);
    let entries: Vec<PathBuf> = if dir.is_dir() { fs::list_dir(&dir).unwrap() } else { Vec::new() };
    let mut newest = 0;
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(step) = name.strip_prefix("step_") {
            let step: u8 = step.parse().unwrap();
            let sealed = SealedDir::open(&path, FORMAT).map_err(|e| format!("torn: {e}"))?;
            for &(name, len) in FILES {
                assert_eq!(&sealed.bytes(name).unwrap()[..], vec![step; len]);
            }
            newest = newest.max(step);
        } else {
            assert!(name.starts_with('.') && name.contains(".tmp-"), "{name}");
        }
    }
    Ok(newest)
}

/// One test: the record is of the whole process.
#[test]
fn no_power_loss_tears_a_checkpoint_and_each_sync_is_needed() {
    let run = Run::recorded();
    let mut seen = BTreeMap::new();
    let (broken, n_states) = run.broken(&mut seen);
    assert_eq!(broken, None);

    let is_sync = |op: &Op| matches!(op, Op::SyncFile(_) | Op::SyncDir(_));
    let syncs: Vec<usize> = (0..run.ops.len()).filter(|&i| is_sync(&run.ops[i])).collect();
    for &at in &syncs {
        let (broken, _) = run.without(at).broken(&mut seen);
        let what =
            broken.unwrap_or_else(|| panic!("nothing is lost without {:?}, call {}", run.ops[at], at + 1));
        println!("without {:?}: {what}", run.ops[at]);
    }
    // Two for the new directories; in each commit three files, the manifest, the directory, its parent; a removal.
    assert_eq!(syncs.len(), 2 + 2 * 6 + 1);
    println!(
        "{} calls, {n_states} states; with a sync left out, {} different ones",
        run.ops.len(),
        seen.len()
    );
}
