//! Which crate may use which: the table of DESIGN.md, compared with `cargo metadata`.

use std::path::Path;

use serde_json::Value;

use super::{Tree, Violation, violation};

/// Package, and what it may use outside tests. `planish-testkit` is for tests only and so in no list.
static ALLOWED: &[(&str, &[&str])] = &[
    ("planish-base", &[]),
    ("planish-store", &["base"]),
    ("planish-compute", &["base"]),
    ("planish-tape", &["compute", "base"]),
    ("planish-model", &["tape", "compute", "store", "base"]),
    ("planish-text", &["store", "base"]),
    ("planish-engine", &["model", "text", "tape", "compute", "store", "base"]),
    ("planish-train", &["engine", "model", "text", "tape", "compute", "store", "base"]),
    ("planish-serve", &["engine", "model", "text", "base"]),
    ("planish", &["train", "serve", "engine", "model", "text", "tape", "compute", "store", "base"]),
    ("planish-testkit", &["base"]),
    ("xtask", &[]),
];

pub fn check(root: &Path, metadata: &Value, tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in items(&metadata["packages"]) {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let manifest = Path::new(manifest).strip_prefix(root).unwrap_or(Path::new(manifest));
        let manifest = manifest.to_string_lossy().replace('\\', "/");
        let Some((_, allowed)) = ALLOWED.iter().find(|(package, _)| *package == name) else {
            found.push(violation(&manifest, 1, format!("crate {name} is not in the table of crate edges")));
            continue;
        };
        if names_faults(&package["features"]["default"]) {
            found.push(violation(&manifest, 1, format!("{name} has {FAULTS} on by default")));
        }
        for dependency in items(&package["dependencies"]) {
            let used = dependency["name"].as_str().unwrap_or_default();
            let ours = used == "planish" || used.starts_with("planish-");
            let short = used.strip_prefix("planish-").unwrap_or(used);
            let for_tests = dependency["kind"].as_str() == Some("dev");
            if ours && !for_tests && !allowed.contains(&short) {
                let line =
                    tree.text(&manifest).and_then(|text| text.lines().position(|l| l.starts_with(used)));
                let what = format!("{name} must not use {used}: not in the table of crate edges");
                found.push(violation(&manifest, line.map_or(1, |at| at + 1), what));
            }
            if ours && !for_tests && names_faults(&dependency["features"]) {
                found.push(violation(&manifest, 1, format!("{name} asks {used} for {FAULTS} outside tests")));
            }
        }
    }
    found
}

/// The feature that makes calls fail on purpose: a binary that is shipped must not have it.
const FAULTS: &str = "faults";

fn names_faults(features: &Value) -> bool {
    let after_crate = |f: &Value| f.as_str().is_some_and(|f| f.rsplit('/').next() == Some(FAULTS));
    items(features).iter().any(after_crate)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;
    use serde_json::json;

    fn of(name: &str, used: &str, kind: Value) -> Vec<Violation> {
        let metadata = json!({"packages": [{"name": name, "manifest_path": "/p/crates/x/Cargo.toml",
            "dependencies": [{"name": used, "kind": kind}]}]});
        let manifest = format!("[package]\n[dependencies]\n{used}.workspace = true\n");
        check(Path::new("/p"), &metadata, &tree(&[("crates/x/Cargo.toml", &manifest)]))
    }

    #[test]
    fn only_edges_of_the_table_pass() {
        assert!(of("planish-tape", "planish-compute", Value::Null).is_empty());
        assert!(of("planish-tape", "serde", Value::Null).is_empty());
        let found = of("planish-tape", "planish-store", Value::Null);
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/x/Cargo.toml", 3));
        assert_eq!(of("planish-tape", "planish-store", json!("build")).len(), 1);
    }

    #[test]
    fn faults_are_for_tests() {
        let with = |kind: Value, default: Value| {
            let metadata = json!({"packages": [{"name": "planish-train", "manifest_path": "/p/crates/x/Cargo.toml",
                "features": {"faults": ["planish-store/faults"], "default": default},
                "dependencies": [{"name": "planish-store", "kind": kind, "features": ["faults"]}]}]});
            check(Path::new("/p"), &metadata, &tree(&[("crates/x/Cargo.toml", "[package]\n")]))
        };
        assert!(with(json!("dev"), json!([])).is_empty());
        assert_eq!(
            whats(&with(Value::Null, json!([]))),
            ["planish-train asks planish-store for faults outside tests"]
        );
        for default in ["faults", "planish-store/faults"] {
            assert_eq!(
                whats(&with(json!("dev"), json!([default]))),
                ["planish-train has faults on by default"]
            );
        }
    }

    #[test]
    fn the_test_kit_is_for_tests() {
        assert!(of("planish-store", "planish-testkit", json!("dev")).is_empty());
        assert_eq!(of("planish", "planish-testkit", Value::Null).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_is_reported() {
        let found = of("planish-extra", "planish-base", Value::Null);
        assert_eq!(whats(&found), ["crate planish-extra is not in the table of crate edges"]);
    }

    #[test]
    fn every_name_of_the_table_is_a_crate_of_the_table() {
        for used in ALLOWED.iter().flat_map(|(_, used)| used.iter()) {
            assert!(ALLOWED.iter().any(|(name, _)| *name == format!("planish-{used}")), "{used}");
        }
    }
}
