//! Sealed directories: what a writer promises, and that nothing damaged is opened.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "damage is done with std::fs")]

use std::path::Path;

use planish_store::fs::{self, DirWriter, SealedDir};
use planish_store::{Kind, Result};

const FORMAT: &str = "test/1";
const FILES: &[(&str, &[u8])] = &[("a.bin", b"weights"), ("b.json", b"{}"), ("empty", b"")];

fn names(dir: &Path) -> Vec<String> {
    let list = fs::list_dir(dir).unwrap();
    list.iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

fn write(target: &Path, files: &[(&str, &[u8])]) -> Result<SealedDir> {
    let mut writer = DirWriter::create(target)?;
    for (name, bytes) in files {
        writer.file(name, |out| out.write_all(bytes).map_err(fs::write_failed))?;
    }
    writer.commit(FORMAT)
}

/// A fresh sealed directory, changed by `change`, and what opening it says.
fn opened(change: impl FnOnce(&Path)) -> Result<SealedDir> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_1");
    write(&path, FILES).unwrap();
    change(&path);
    SealedDir::open(&path, FORMAT)
}

fn code(change: impl FnOnce(&Path)) -> &'static str {
    let e = opened(change).unwrap_err();
    assert_eq!(e.kind(), Kind::Input, "{e:?}");
    assert!(e.to_string().contains("step_1"), "{e:?}");
    e.code()
}

#[test]
fn what_is_committed_is_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_1");
    let sealed = write(&path, FILES).unwrap();
    assert_eq!(names(dir.path()), ["step_1"]);
    assert_eq!(names(&path), ["a.bin", "b.json", "empty", "manifest.json"]);
    for sealed in [sealed, SealedDir::open(&path, FORMAT).unwrap()] {
        assert_eq!((sealed.path(), sealed.total_bytes()), (path.as_path(), 9));
        for &(name, bytes) in FILES {
            assert_eq!(&sealed.bytes(name).unwrap()[..], bytes);
            assert_eq!(sealed.read(name, bytes.len() as u64).unwrap(), bytes);
        }
        assert_eq!(sealed.read("a.bin", 6).unwrap_err().code(), "too large");
        for absent in ["c", "manifest.json", "../step_1/a.bin"] {
            assert_eq!(sealed.bytes(absent).unwrap_err().code(), "not found");
            assert_eq!(sealed.read(absent, 9).unwrap_err().code(), "not found");
        }
    }
    // The hash is that of an independent tool: `printf weights | sha256sum`.
    let manifest = std::fs::read_to_string(path.join("manifest.json")).unwrap();
    let a = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c";
    let expected = format!(r#"{{"format":"test/1","files":[{{"name":"a.bin","bytes":7,"sha256":"{a}"}},"#);
    assert!(manifest.starts_with(&expected), "{manifest}");
}
