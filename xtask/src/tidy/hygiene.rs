//! Small things that must not reach the repository: stubs, skipped tests, crates without
//! the lints of the workspace, paths of somebody's machine, heavy data.

use super::{Tree, Violation, violation};

const GOLDEN_BYTES: usize = 10 << 20;

static STUBS: &[&str] = &["todo!", "unimplemented!"];
/// Spelt in two parts so that this file does not find itself.
static MACHINE_PATHS: &[&str] = &[
    concat!("/", "root/"),
    concat!("/", "home/"),
    concat!("/", "Users/"),
    concat!("/", "work/"),
    concat!("C:", "\\Users"),
];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in &tree.rust {
        for stub in STUBS {
            found.extend(
                source.find(stub).iter().map(|&(_, line)| violation(&source.path, line, format!("`{stub}`"))),
            );
        }
        let ignored = source.code.match_indices("#[ignore").map(|(at, _)| source.line(at));
        found.extend(ignored.map(|line| violation(&source.path, line, "a test that never runs")));
    }
    for name in tree.crates() {
        let manifest = format!("crates/{name}/Cargo.toml");
        if !tree.text(&manifest).unwrap_or_default().contains("[lints]\nworkspace = true\n") {
            found.push(violation(&manifest, 1, "no `[lints] workspace = true`"));
        }
    }
    for file in &tree.files {
        if let Some(path) = machine_path(&format!("/{}", file.path)) {
            found.push(violation(&file.path, 0, format!("the file name holds `{path}`")));
        }
        let text = std::str::from_utf8(&file.bytes).unwrap_or_default();
        for (i, line) in text.lines().enumerate() {
            let path = machine_path(line);
            found.extend(
                path.map(|path| violation(&file.path, i + 1, format!("`{path}` is a path of one machine"))),
            );
        }
    }
    let golden: usize =
        tree.files.iter().filter(|f| f.path.starts_with("golden/")).map(|f| f.bytes.len()).sum();
    if golden > GOLDEN_BYTES {
        found.push(violation("golden", 0, format!("{golden} bytes, at most {GOLDEN_BYTES}")));
    }
    found
}

/// An absolute path of a home or working folder; `dir/work/` and `$X/home/` are not.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS.iter().copied().find(|path| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "._-}~*)".contains(c))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;

    #[test]
    fn stubs_and_skipped_tests_are_reported() {
        let text = "fn a() { todo!() }\n// todo!()\n#[test]\n#[ignore = \"slow\"]\nfn b() {}\n";
        let found = check(&tree(&[("crates/a/tests/x.rs", text)]));
        assert_eq!(found.iter().map(|v| v.line).collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn crates_take_the_lints_of_the_workspace() {
        let of = |text: &str| check(&tree(&[("crates/a/Cargo.toml", text)])).len();
        assert_eq!((of("[lints]\nworkspace = true\n"), of("[package]\n")), (0, 1));
    }

    #[test]
    fn machine_paths_are_absolute() {
        let home = MACHINE_PATHS[1];
        assert!(machine_path(&format!("open(\"{home}x\")")).is_some());
        assert!(machine_path(&format!("a{home}x ./a{home} $X{home} ${{X}}{home}")).is_none());
        let found = check(&tree(&[("docs/a.md", &format!("x\n{home}x\n"))]));
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn golden_data_stays_small() {
        let big = "x".repeat(GOLDEN_BYTES + 1);
        assert_eq!(check(&tree(&[("golden/a", &big)])).len(), 1);
        assert!(whats(&check(&tree(&[("docs/a", &big)]))).is_empty());
    }
}
