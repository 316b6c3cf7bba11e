//! What a disk may hold after a power loss.
//!
//! A kill proves nothing about durability: the system's cache outlives the process. This model does. It is given the
//! calls that a writer made and yields every state that the disk may then be in, where
//!
//! - the content of a file is on the disk once the file has been synced. What was written since is there, or is not,
//!   or its first half is, or its length is there with zeros for content;
//! - a name is on the disk (made, removed, renamed) once the directory that holds it has been synced. Of the changes
//!   since, all may be there, none, all but one, or one alone: of two changes either may come first;
//! - syncing a file says nothing about its name, and syncing a directory nothing about what its names lead to;
//! - a rename within one directory happens or does not: both names never show, nor neither.
//!
//! Real file systems promise more. A writer that passes here needs nothing from them but the standard.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A call that changes the disk. Paths are relative to a directory that is there from the beginning.
#[derive(Clone, Debug)]
pub enum Op {
    /// Makes a directory.
    MakeDir(PathBuf),
    /// Makes an empty file.
    Create(PathBuf),
    /// Writes at the end of a file.
    Write(PathBuf, Vec<u8>),
    /// Makes the content of a file durable.
    SyncFile(PathBuf),
    /// Makes the names in a directory durable.
    SyncDir(PathBuf),
    /// Another name in the same directory, which must be free.
    Rename(PathBuf, PathBuf),
    /// Removes a file or an empty directory.
    Remove(PathBuf),
}

/// All paths on a disk, parents first; directories have no content.
pub type Tree = BTreeMap<PathBuf, Option<Arc<[u8]>>>;

/// Every state in which a power loss right after `ops` may leave the disk.
///
/// # Panics
/// When an operation is impossible: the record is not one of a real disk.
pub fn states(ops: &[Op]) -> BTreeSet<Tree> {
    let mut disk = Disk { nodes: vec![Node::Dir(Dir::default())] };
    for op in ops {
        disk.apply(op);
    }
    disk.states()
}

/// Index in the disk's list of nodes; 0 is the root.
type Inode = usize;

type Names = BTreeMap<OsString, Inode>;

/// Names that one operation sets or removes, together.
type Change = Vec<(OsString, Option<Inode>)>;

enum Node {
    Dir(Dir),
    File(File),
}

#[derive(Default)]
struct Dir {
    durable: Names,
    pending: Vec<Change>,
}

#[derive(Default)]
struct File {
    content: Vec<u8>,
    n_durable: usize,
}

struct Disk {
    nodes: Vec<Node>,
}

impl Disk {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::MakeDir(path) => self.add(path, Node::Dir(Dir::default())),
            Op::Create(path) => self.add(path, Node::File(File::default())),
            Op::Write(path, bytes) => self.file(path).content.extend_from_slice(bytes),
            Op::SyncFile(path) => {
                let file = self.file(path);
                file.n_durable = file.content.len();
            }
            Op::SyncDir(path) => {
                let dir = self.dir(path);
                dir.durable = dir.now();
                dir.pending.clear();
            }
            Op::Rename(from, to) => {
                assert_eq!(from.parent(), to.parent(), "a rename between directories");
                assert!(self.find(to).is_none(), "a rename over {}", to.display());
                let inode = self.existing(from);
                self.change(from, vec![(name(from), None), (name(to), Some(inode))]);
            }
            Op::Remove(path) => {
                self.existing(path);
                self.change(path, vec![(name(path), None)]);
            }
        }
    }

    fn add(&mut self, path: &Path, node: Node) {
        assert!(self.find(path).is_none(), "{} is there already", path.display());
        self.nodes.push(node);
        let inode = self.nodes.len() - 1;
        self.change(path, vec![(name(path), Some(inode))]);
    }

    fn change(&mut self, path: &Path, change: Change) {
        self.dir(path.parent().expect("a path with a name")).pending.push(change);
    }

    fn find(&self, path: &Path) -> Option<Inode> {
        path.components().try_fold(0, |inode, part| match &self.nodes[inode] {
            Node::Dir(dir) => dir.now().get(AsRef::<OsStr>::as_ref(&part)).copied(),
            Node::File(_) => None,
        })
    }

    fn existing(&self, path: &Path) -> Inode {
        self.find(path).unwrap_or_else(|| panic!("{} is not there", path.display()))
    }

    fn dir(&mut self, path: &Path) -> &mut Dir {
        let inode = self.existing(path);
        match &mut self.nodes[inode] {
            Node::Dir(dir) => dir,
            Node::File(_) => panic!("{} is a file", path.display()),
        }
    }

    fn file(&mut self, path: &Path) -> &mut File {
        let inode = self.existing(path);
        match &mut self.nodes[inode] {
            Node::File(file) => file,
            Node::Dir(_) => panic!("{} is a directory", path.display()),
        }
    }

    fn states(&self) -> BTreeSet<Tree> {
        self.below(0).into_iter().collect()
    }

    /// What may be found at an inode, with paths relative to it: the product of what may be found at its names.
    fn below(&self, inode: Inode) -> Vec<Tree> {
        let dir = match &self.nodes[inode] {
            Node::File(file) => {
                let leaf = |content| Tree::from([(PathBuf::new(), Some(content))]);
                return file.contents().into_iter().map(leaf).collect();
            }
            Node::Dir(dir) => dir,
        };
        let mut found = Vec::new();
        for names in dir.states() {
            let mut trees = vec![Tree::from([(PathBuf::new(), None)])];
            for (name, inode) in names {
                let below = self.below(inode);
                let pairs = trees.iter().flat_map(|tree| below.iter().map(move |child| (tree, child)));
                trees = pairs.map(|(tree, child)| joined(tree, &name, child)).collect();
            }
            found.append(&mut trees);
        }
        found
    }
}

impl Dir {
    fn now(&self) -> Names {
        self.with(|_| true)
    }

    /// The durable names with those pending changes that `chosen` takes.
    fn with(&self, chosen: impl Fn(usize) -> bool) -> Names {
        let mut names = self.durable.clone();
        for (_, change) in self.pending.iter().enumerate().filter(|(i, _)| chosen(*i)) {
            for (name, inode) in change {
                match inode {
                    Some(inode) => names.insert(name.clone(), *inode),
                    None => names.remove(name),
                };
            }
        }
        names
    }

    fn states(&self) -> BTreeSet<Names> {
        let all_or_none = [self.with(|_| true), self.with(|_| false)];
        let one = (0..self.pending.len()).flat_map(|one| [self.with(|i| i == one), self.with(|i| i != one)]);
        all_or_none.into_iter().chain(one).collect()
    }
}

impl File {
    fn contents(&self) -> BTreeSet<Arc<[u8]>> {
        let (durable, rest) = self.content.split_at(self.n_durable);
        let zeros = vec![0; rest.len()];
        let tails = [&[], &rest[..rest.len() / 2], rest, &zeros];
        tails.into_iter().map(|tail| [durable, tail].concat().into()).collect()
    }
}

fn joined(tree: &Tree, name: &OsStr, child: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.extend(child.iter().map(|(path, content)| {
        let below =
            if path.as_os_str().is_empty() { PathBuf::from(name) } else { Path::new(name).join(path) };
        (below, content.clone())
    }));
    tree
}

fn name(path: &Path) -> OsString {
    path.file_name().expect("a path with a name").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States as text: `name` for a directory, `name=content` for a file.
    fn of(ops: &[Op]) -> BTreeSet<String> {
        let one = |(path, content): (&PathBuf, &Option<Arc<[u8]>>)| match content {
            Some(content) => format!("{}={}", path.display(), String::from_utf8_lossy(content)),
            None => path.display().to_string(),
        };
        states(ops)
            .iter()
            .map(|t| t.iter().map(one).collect::<Vec<_>>().join(" ").trim().to_owned())
            .collect()
    }

    fn p(text: &str) -> PathBuf {
        PathBuf::from(text)
    }

    fn set(states: &[&str]) -> BTreeSet<String> {
        states.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn content_and_name_become_durable_apart() {
        let mut ops = vec![Op::Create(p("f")), Op::Write(p("f"), b"abcd".to_vec())];
        let unsynced = set(&["", "f=", "f=ab", "f=abcd", "f=\0\0\0\0"]);
        assert_eq!(of(&ops), unsynced);
        let only_name = [ops.clone(), vec![Op::SyncDir(p(""))]].concat();
        assert_eq!(of(&only_name), set(&["f=", "f=ab", "f=abcd", "f=\0\0\0\0"]));
        ops.push(Op::SyncFile(p("f")));
        assert_eq!(of(&ops), set(&["", "f=abcd"]));
        ops.push(Op::SyncDir(p("")));
        assert_eq!(of(&ops), set(&["f=abcd"]));
        ops.push(Op::Write(p("f"), b"ef".to_vec()));
        assert_eq!(of(&ops), set(&["f=abcd", "f=abcde", "f=abcdef", "f=abcd\0\0"]));
    }

    #[test]
    fn renames_are_whole_and_changes_come_in_any_order() {
        let made = vec![Op::MakeDir(p("a")), Op::SyncDir(p(""))];
        let renamed = [made.clone(), vec![Op::Rename(p("a"), p("b"))]].concat();
        assert_eq!(of(&renamed), set(&["a", "b"]));
        let and_made = [renamed, vec![Op::MakeDir(p("c"))]].concat();
        assert_eq!(of(&and_made), set(&["a", "b", "a c", "b c"]));
        let removed = [made, vec![Op::Remove(p("a"))]].concat();
        assert_eq!(of(&removed), set(&["", "a"]));
        // Three pending names: none, each alone, each missing, all.
        let three = ["x", "y", "z"].map(|n| Op::MakeDir(p(n)));
        assert_eq!(of(&three), set(&["", "x", "y", "z", "x y", "x z", "y z", "x y z"]));
    }

    #[test]
    fn a_directory_may_be_there_without_its_names() {
        let ops = [Op::MakeDir(p("d")), Op::MakeDir(p("d/e")), Op::SyncDir(p(""))];
        assert_eq!(of(&ops), set(&["d", "d d/e"]));
        let other = [Op::MakeDir(p("d")), Op::MakeDir(p("d/e")), Op::SyncDir(p("d"))];
        assert_eq!(of(&other), set(&["", "d d/e"]));
    }
}
