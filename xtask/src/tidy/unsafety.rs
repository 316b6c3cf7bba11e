//! `unsafe` only where the house allows it, and as often as ARCHITECTURE.md says.
//!
//! That each block is explained is clippy's part (`undocumented_unsafe_blocks`).

use std::path::Path;

use anyhow::{Context, Result};

use super::source::words;
use super::{Tree, Violation, violation};

/// SIMD kernels and the thread pool; the one file that maps other people's bytes.
static ALLOWED: &[&str] = &["crates/compute/", "crates/store/src/mmap.rs"];
/// Crates with such places, in the order of the line in ARCHITECTURE.md.
static COUNTED: &[&str] = &["compute", "store"];
const STATED_IN: &str = "ARCHITECTURE.md";
const LINE: &str = "unsafe blocks: ";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.rust.iter().filter(|s| !ALLOWED.iter().any(|place| s.path.starts_with(place))) {
        let places = source.find("unsafe").into_iter();
        found.extend(
            places.map(|(_, line)| {
                violation(&source.path, line, "unsafe outside compute and store/src/mmap.rs")
            }),
        );
    }
    let crates = tree.crates().into_iter().map(|name| (format!("crates/{name}"), name));
    for (folder, name) in crates.chain([("testkit".into(), "testkit"), ("xtask".into(), "xtask")]) {
        let attribute = match name {
            "compute" => continue,
            // mmap.rs lifts it for itself, which `forbid` would not let it do.
            "store" => "#![deny(unsafe_code)]",
            _ => "#![forbid(unsafe_code)]",
        };
        let roots = ["lib.rs", "main.rs"].map(|file| format!("{folder}/src/{file}"));
        let roots = roots.iter().filter_map(|path| tree.rust(path));
        let bare = roots.filter(|root| !root.code.contains(attribute));
        found.extend(bare.map(|root| violation(&root.path, 1, format!("no `{attribute}`"))));
    }
    found
}

/// Blocks and impls outside tests; `unsafe fn` and `unsafe trait` only pass the duty on.
fn count(tree: &Tree, name: &str) -> usize {
    let folder = format!("crates/{name}");
    let sources = tree.below(&folder).filter(|s| !s.is_test_file());
    let per_file = sources.map(|source| {
        let outside_tests = words(&source.code, "unsafe").filter(|&at| !source.in_tests(at));
        outside_tests
            .filter(|&at| {
                let next = source.code[at + "unsafe".len()..].trim_start();
                next.starts_with('{') || words(next, "impl").next() == Some(0)
            })
            .count()
    });
    per_file.sum()
}

/// `compute N, store N` with the numbers of the tree.
fn counts(tree: &Tree) -> String {
    let parts: Vec<String> = COUNTED.iter().map(|name| format!("{name} {}", count(tree, name))).collect();
    parts.join(", ")
}

pub fn compare(tree: &Tree) -> Vec<Violation> {
    let counts = counts(tree);
    let text = tree.text(STATED_IN).unwrap_or_default();
    match stated(text) {
        None => vec![violation(STATED_IN, 0, format!("no line `{LINE}{counts}`"))],
        Some((line, stated)) if stated != counts => {
            let what = format!(
                "states `{stated}`, the code has `{counts}`; look at what changed, then `cargo xtask tidy --bless`"
            );
            vec![violation(STATED_IN, line, what)]
        }
        Some(_) => Vec::new(),
    }
}

/// Writes the numbers of the tree into the line; a missing line is still a violation.
pub fn bless(root: &Path, tree: &Tree) -> Result<Vec<Violation>> {
    let text = tree.text(STATED_IN).unwrap_or_default();
    let Some((_, stated)) = stated(text) else { return Ok(compare(tree)) };
    let blessed = text.replacen(&format!("{LINE}{stated}"), &format!("{LINE}{}", counts(tree)), 1);
    if blessed != text {
        std::fs::write(root.join(STATED_IN), blessed).with_context(|| format!("cannot write {STATED_IN}"))?;
    }
    Ok(Vec::new())
}

/// The line and the text after [`LINE`], as far as it has the form `name N, name N`.
fn stated(text: &str) -> Option<(usize, &str)> {
    let at = text.find(LINE)?;
    let rest = &text[at + LINE.len()..];
    let mut end = 0;
    for (i, name) in COUNTED.iter().enumerate() {
        let head = if i == 0 { format!("{name} ") } else { format!(", {name} ") };
        let number = rest[end..].strip_prefix(&head)?;
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        end += head.len() + digits;
    }
    Some((text[..at].matches('\n').count() + 1, &rest[..end]))
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;

    const KERNEL: &str = "unsafe fn f() {}\nfn g() { unsafe { f() } }\nunsafe impl Send for S {}\n\
        #[cfg(test)]\nmod tests { fn h() { unsafe { super::f() } } }\n";

    #[test]
    fn unsafe_has_two_places() {
        let found =
            check(&tree(&[("crates/text/src/x.rs", "fn a() {}\nfn f() { unsafe { g() } } // unsafe\n")]));
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert!(
            check(&tree(&[("crates/compute/src/x.rs", KERNEL), ("crates/store/src/mmap.rs", KERNEL)]))
                .is_empty()
        );
    }

    #[test]
    fn every_crate_root_says_so() {
        let roots =
            [("crates/text/Cargo.toml", ""), ("crates/text/src/lib.rs", "// #![forbid(unsafe_code)]\n")];
        assert_eq!(whats(&check(&tree(&roots))), ["no `#![forbid(unsafe_code)]`"]);
        let store = [("crates/store/Cargo.toml", ""), ("crates/store/src/lib.rs", "#![deny(unsafe_code)]\n")];
        assert!(check(&tree(&store)).is_empty());
    }

    #[test]
    fn blocks_and_impls_are_counted_and_tests_are_not() {
        let files = [("crates/compute/src/x.rs", KERNEL), ("crates/compute/tests/t.rs", KERNEL)];
        assert_eq!(counts(&tree(&files)), "compute 2, store 0");
    }

    #[test]
    fn the_stated_line_is_compared() {
        let of = |text: &str| compare(&tree(&[("crates/compute/src/x.rs", KERNEL), (STATED_IN, text)]));
        assert!(of("# A\n- `unsafe blocks: compute 2, store 0`.\n").is_empty());
        assert_eq!(of("# A\n- `unsafe blocks: compute 1, store 0`.\n")[0].line, 2);
        assert_eq!(whats(&of("")), ["no line `unsafe blocks: compute 2, store 0`"]);
        assert_eq!(of("unsafe blocks: many").len(), 1);
    }
}
