//! Functions of at most 70 lines, files of at most 500. Tests and tables are apart.

use super::{Tree, Violation, violation};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 500;

/// Something that may be longer. The list may only shrink: a needless or generous entry is itself a violation.
struct Exception {
    path: &'static str,
    /// None: the file.
    function: Option<&'static str>,
    lines: usize,
    reason: &'static str,
}

static EXCEPTIONS: &[Exception] = &[];

pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(tree, EXCEPTIONS)
}

fn check_with(tree: &Tree, exceptions: &[Exception]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut used = vec![false; exceptions.len()];
    let mut measure = |path: &str, line: usize, function: Option<&str>, lines: usize, limit: usize| {
        if lines <= limit {
            return;
        }
        let what = function.map_or("file".to_owned(), |name| format!("fn {name}"));
        let entry = exceptions.iter().position(|e| e.path == path && e.function == function);
        match entry.map(|i| (i, &exceptions[i])) {
            None => found.push(violation(path, line, format!("{what} has {lines} lines, at most {limit}"))),
            Some((i, e)) => {
                used[i] = true;
                if lines != e.lines {
                    let why =
                        format!("{what} has {lines} lines, its exception says {} ({})", e.lines, e.reason);
                    found.push(violation(path, line, why));
                }
            }
        }
    };
    for source in tree.rust.iter().filter(|s| !s.is_test_file()) {
        if !source.is_table() {
            measure(&source.path, 0, None, source.own_lines(), FILE_LINES);
        }
        for f in source.functions() {
            measure(&source.path, f.line, Some(&f.name), f.lines, FUNCTION_LINES);
        }
    }
    for file in tree.files.iter().filter(|f| f.path.ends_with(".py") || f.path.ends_with(".sh")) {
        let lines = file.bytes.iter().filter(|&&b| b == b'\n').count();
        measure(&file.path, 0, None, lines, FILE_LINES);
    }
    let needless = exceptions.iter().zip(used).filter(|(_, used)| !used);
    found.extend(needless.map(|(e, _)| violation(e.path, 0, "its exception in tidy is no longer needed")));
    found
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn the_limits_are_inclusive() {
        let fits = function(FUNCTION_LINES);
        assert!(check_with(&tree(&[("crates/a/src/x.rs", &fits)]), &[]).is_empty());
        let over = function(FUNCTION_LINES + 1);
        let found = check_with(&tree(&[("crates/a/src/x.rs", &over)]), &[]);
        assert_eq!(whats(&found), ["fn long has 71 lines, at most 70"]);
        let file = "mod a;\n".repeat(FILE_LINES + 1);
        let found = check_with(&tree(&[("crates/a/src/x.rs", &file)]), &[]);
        assert_eq!(whats(&found), ["file has 501 lines, at most 500"]);
        assert!(check_with(&tree(&[("crates/a/tests/x.rs", &file)]), &[]).is_empty());
    }

    #[test]
    fn exceptions_are_exact_and_needed() {
        let entry = |lines| [Exception { path: "x.rs", function: Some("long"), lines, reason: "why" }];
        let over = function(80);
        assert!(check_with(&tree(&[("x.rs", &over)]), &entry(80)).is_empty());
        let found = check_with(&tree(&[("x.rs", &over)]), &entry(90));
        assert_eq!(whats(&found), ["fn long has 80 lines, its exception says 90 (why)"]);
        let found = check_with(&tree(&[("x.rs", "fn long() {}\n")]), &entry(80));
        assert_eq!(whats(&found), ["its exception in tidy is no longer needed"]);
    }
}
