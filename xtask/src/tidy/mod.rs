//! The rules of the house that the compiler and clippy cannot check.
//!
//! Each rule is a function from the [`Tree`] to [`Violation`]s; all rules run, everything found is reported.

mod block;
mod edges;
mod hygiene;
mod sizes;
mod source;
mod tables;
mod unsafety;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;
use source::Source;

/// What to do with the unsafe counts that ARCHITECTURE.md states.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    Compare,
    Bless,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    /// From 1; 0 for the whole file.
    pub line: usize,
    pub what: String,
}

/// A file that is not Rust, or any file seen as bytes.
pub struct Plain {
    pub path: String,
    pub bytes: Vec<u8>,
}

/// All files of the project: tracked, and new ones that git does not ignore.
pub struct Tree {
    pub rust: Vec<Source>,
    pub files: Vec<Plain>,
}

impl Tree {
    pub fn rust(&self, path: &str) -> Option<&Source> {
        self.rust.iter().find(|s| s.path == path)
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        let file = self.files.iter().find(|f| f.path == path)?;
        std::str::from_utf8(&file.bytes).ok()
    }

    /// The Rust files below a folder.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a Source> {
        self.rust
            .iter()
            .filter(move |s| s.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Lower-case names of the crates under `crates/`, in order.
    pub fn crates(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .files
            .iter()
            .filter_map(|f| f.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
            .filter(|name| !name.contains('/'))
            .collect();
        names.sort_unstable();
        names
    }
}

/// Prints every violation; true if there is none.
pub fn run(root: &Path, counts: Counts) -> Result<bool> {
    let tree = read(root)?;
    let mut found = Vec::new();
    found.extend(sizes::check(&tree));
    found.extend(edges::check(root, &run::metadata(root)?, &tree));
    found.extend(tables::check(&tree));
    found.extend(block::check(&tree));
    found.extend(unsafety::check(&tree));
    found.extend(match counts {
        Counts::Compare => unsafety::compare(&tree),
        Counts::Bless => unsafety::bless(root, &tree)?,
    });
    found.extend(hygiene::check(&tree));
    found.sort();
    for v in &found {
        println!("{}:{}: {}", v.path, v.line, v.what);
    }
    let files = tree.files.len();
    match found.len() {
        0 => println!("tidy: {files} files, nothing found"),
        n => println!("tidy: {files} files, {n} violations"),
    }
    Ok(found.is_empty())
}

fn read(root: &Path) -> Result<Tree> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let names = run::output(Command::new("git").current_dir(root).args(list))?;
    let names = String::from_utf8(names).context("a file name is not UTF-8")?;
    let mut tree = Tree { rust: Vec::new(), files: Vec::new() };
    for path in names.split('\0').filter(|path| !path.is_empty()) {
        // A file that was deleted but not yet committed is still listed, as are links and submodules.
        if !root.join(path).is_file() {
            continue;
        }
        let bytes = std::fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        if path.ends_with(".rs") {
            let text = std::str::from_utf8(&bytes).with_context(|| format!("{path} is not UTF-8"))?;
            tree.rust.push(Source::new(path, text));
        }
        tree.files.push(Plain { path: path.to_owned(), bytes });
    }
    Ok(tree)
}

fn violation(path: &str, line: usize, what: impl Into<String>) -> Violation {
    Violation { path: path.to_owned(), line, what: what.into() }
}

#[cfg(test)]
fn tree(files: &[(&str, &str)]) -> Tree {
    let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    Tree {
        rust: rust.map(|(path, text)| Source::new(path, text)).collect(),
        files: files.iter().map(|&(path, text)| Plain { path: path.into(), bytes: text.into() }).collect(),
    }
}

#[cfg(test)]
fn whats(found: &[Violation]) -> Vec<&str> {
    found.iter().map(|v| v.what.as_str()).collect()
}
