//! "One file and one line": every file of a table folder is named in the folder's table.

use super::source::{Source, words};
use super::{Tree, Violation, violation};

/// Folder, the table in its `mod.rs`, and files that the entries share.
struct Table {
    folder: &'static str,
    name: &'static str,
    shared: &'static [&'static str],
}

static TABLES: &[Table] = &[
    Table { folder: "crates/compute/src/quant", name: "QUANTS", shared: &[] },
    Table { folder: "crates/tape/src/ops", name: "OPS", shared: &[] },
    Table { folder: "crates/model/src/arch", name: "ARCHS", shared: &[] },
    Table { folder: "crates/text/src/dataset", name: "FORMATS", shared: &[] },
    Table { folder: "crates/train/src/optim", name: "OPTIMS", shared: &[] },
    Table { folder: "crates/train/src/schedule", name: "SCHEDULES", shared: &[] },
];

pub fn check(tree: &Tree) -> Vec<Violation> {
    TABLES.iter().flat_map(|table| check_one(tree, table)).collect()
}

fn check_one(tree: &Tree, table: &Table) -> Vec<Violation> {
    let stems = stems(tree, table);
    if stems.is_empty() && tree.below(table.folder).next().is_none() {
        return Vec::new();
    }
    let path = format!("{}/mod.rs", table.folder);
    let Some(text) = tree.rust(&path).and_then(|source| entries(source, table.name)) else {
        return vec![violation(&path, 0, format!("no `static {} ... ];` here", table.name))];
    };
    let missing = stems.into_iter().filter(|(_, stem)| words(text, stem).next().is_none());
    missing
        .map(|(file, stem)| violation(file, 1, format!("{stem} is not in {} of {path}", table.name)))
        .collect()
}

/// Names of the architectures: the files of the `ARCHS` folder.
pub fn architectures(tree: &Tree) -> Vec<&str> {
    let of_archs = TABLES.iter().filter(|table| table.name == "ARCHS");
    of_archs.flat_map(|table| stems(tree, table)).map(|(_, stem)| stem).collect()
}

/// Entry files of the folder with their names; `name/mod.rs` is the entry `name`.
fn stems<'a>(tree: &'a Tree, table: &Table) -> Vec<(&'a str, &'a str)> {
    let in_folder = tree.rust.iter().filter_map(|source| {
        let rest = source.path.strip_prefix(table.folder)?.strip_prefix('/')?;
        let stem = rest.strip_suffix("/mod.rs").or(rest.strip_suffix(".rs"))?;
        Some((source.path.as_str(), stem))
    });
    let apart =
        |stem: &str| stem.contains('/') || ["mod", "tests"].contains(&stem) || table.shared.contains(&stem);
    in_folder.filter(|(_, stem)| !apart(stem)).collect()
}

/// The code between `static NAME` and the first `];`.
fn entries<'a>(source: &'a Source, name: &str) -> Option<&'a str> {
    let head = format!("static {name}");
    let start = words(&source.code, &head).next()?;
    let end = source.code[start..].find("];")?;
    Some(&source.code[start..start + end])
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;

    const FOLDER: &str = "crates/train/src/optim";

    fn found(table: &str, files: &[&str]) -> Vec<String> {
        let mod_rs = format!("{FOLDER}/mod.rs");
        let paths: Vec<String> = files.iter().map(|f| format!("{FOLDER}/{f}")).collect();
        let mut all = vec![(mod_rs.as_str(), table)];
        all.extend(paths.iter().map(|path| (path.as_str(), "")));
        whats(&check(&tree(&all))).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn an_absent_folder_is_skipped() {
        assert!(check(&tree(&[("crates/train/src/lib.rs", "")])).is_empty());
    }

    #[test]
    fn every_file_has_its_line() {
        let table =
            "mod adamw;\npub static OPTIMS: &[&Optim] = &[\n    &adamw::ADAMW,\n];\nuse sgd;\n// lion\n";
        assert!(found(table, &["adamw.rs", "tests.rs", "adamw/slots.rs"]).is_empty());
        assert_eq!(found(table, &["sgd.rs"]), [format!("sgd is not in OPTIMS of {FOLDER}/mod.rs")]);
        assert_eq!(found(table, &["lion/mod.rs"]), [format!("lion is not in OPTIMS of {FOLDER}/mod.rs")]);
        assert_eq!(found(table, &["adam.rs"]).len(), 1, "a part of a word is not the word");
    }

    #[test]
    fn a_folder_without_its_table_is_reported() {
        assert_eq!(found("pub fn f() {}", &["sgd.rs"]), ["no `static OPTIMS ... ];` here"]);
    }
}
