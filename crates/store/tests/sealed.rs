//! Sealed directories: what a writer promises, and that nothing damaged is opened.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "damage is done with std::fs")]

use std::io::Write;
use std::path::Path;

use planish_store::fs::{self, DirWriter, Lock, SealedDir};
use planish_store::{Error, Kind, Result};

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

/// The text of the manifest, changed.
fn edited(path: &Path, from: &str, to: &str) {
    let file = path.join("manifest.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
}

/// In place: some file systems wait for the disk when a file that was emptied is written again.
fn overwrite(file: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().write_all(bytes).unwrap();
}

#[test]
fn every_changed_bit_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_1");
    write(&path, FILES).unwrap();
    for name in ["a.bin", "b.json", "manifest.json"] {
        let file = path.join(name);
        let whole = std::fs::read(&file).unwrap();
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            overwrite(&file, &bytes);
            let e = SealedDir::open(&path, FORMAT).expect_err(&format!("{name}, byte {at}, bit {bit}"));
            let known = ["manifest", "format", "checksum", "incomplete"].contains(&e.code());
            assert!(known && e.kind() == Kind::Input, "{name}, byte {at}, bit {bit}: {e:?}");
            assert!(name == "manifest.json" || e.code() == "checksum", "{e:?}");
        }
        for len in 0..whole.len() {
            std::fs::write(&file, &whole[..len]).unwrap();
            let e = SealedDir::open(&path, FORMAT).expect_err(&format!("{name}, {len} bytes"));
            assert_eq!(e.code(), if name == "manifest.json" { "manifest" } else { "checksum" });
        }
        std::fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
        assert!(SealedDir::open(&path, FORMAT).is_err(), "{name}, a byte more");
        std::fs::write(&file, whole).unwrap();
        SealedDir::open(&path, FORMAT).unwrap();
    }
}

#[test]
fn other_directories_are_refused_by_name() {
    assert_eq!(code(|p| std::fs::remove_file(p.join("manifest.json")).unwrap()), "incomplete");
    assert_eq!(code(|p| std::fs::remove_file(p.join("empty")).unwrap()), "incomplete");
    assert_eq!(code(|p| std::fs::write(p.join("empty"), b"x").unwrap()), "checksum");
    assert_eq!(code(|p| std::fs::write(p.join("more"), b"").unwrap()), "manifest");
    assert_eq!(code(|p| std::fs::create_dir(p.join("more")).unwrap()), "manifest");
    let swap = |p: &Path| {
        std::fs::rename(p.join("a.bin"), p.join("t")).unwrap();
        std::fs::rename(p.join("b.json"), p.join("a.bin")).unwrap();
        std::fs::rename(p.join("t"), p.join("b.json")).unwrap();
    };
    assert_eq!(code(swap), "checksum");
    let directory = |p: &Path| {
        std::fs::remove_file(p.join("empty")).unwrap();
        std::fs::create_dir(p.join("empty")).unwrap();
    };
    assert_eq!(code(directory), "not a file");
    assert_eq!(code(|p| std::fs::remove_dir_all(p).unwrap()), "not found");
    // What systems leave about is no part of it.
    assert!(opened(|p| std::fs::write(p.join(".DS_Store"), b"x").unwrap()).is_ok());

    let e = opened(|p| edited(p, "test/1", "test/2")).unwrap_err();
    assert_eq!((e.kind(), e.code()), (Kind::Input, "format"));
    assert!(e.to_string().contains("\"test/2\"") && e.to_string().contains("\"test/1\""), "{e}");
    // A later version may well have other fields; its format is what counts.
    let later = r#"{"format":"test/2","parts":[]}"#;
    assert_eq!(code(|p| std::fs::write(p.join("manifest.json"), later).unwrap()), "format");
    let e = opened(|p| std::fs::write(p.join("a.bin"), b"weighTs").unwrap()).unwrap_err();
    let (expected, got) = (fs::sha256(b"weights"), fs::sha256(b"weighTs"));
    let text = e.to_string();
    assert!(text.contains("a.bin") && text.contains(&expected) && text.contains(&got), "{text}");
}

#[test]
fn a_manifest_cannot_lead_elsewhere() {
    // An entry more, with the length and the hash of a file that is there: only its name can be wrong.
    let named = |path: &Path, name: &str| {
        let entry = format!(r#"{{"name":"{name}","bytes":7,"sha256":"{}"}},"#, fs::sha256(b"weights"));
        edited(path, "\"files\":[", &format!("\"files\":[{entry}"));
    };
    let long = format!("{}a.bin", "./".repeat(98));
    for name in ["../step_1/a.bin", "./a.bin", "a.bin", "", ".", "manifest.json", "a b", &long] {
        assert_eq!(code(|p| named(p, name)), "manifest", "{name:?}");
    }
    assert_eq!(code(|p| named(p, p.join("a.bin").to_str().unwrap())), "manifest");
    let hidden = |p: &Path| {
        std::fs::copy(p.join("a.bin"), p.join(".a.bin")).unwrap();
        named(p, ".a.bin");
    };
    assert_eq!(code(hidden), "manifest");
    assert_eq!(code(|p| edited(p, "\"bytes\":7", "\"bytes\":7,\"bytes\":7")), "manifest");
    assert_eq!(code(|p| edited(p, "\"bytes\":7", "\"bytes\":7,\"mode\":7")), "manifest");
    assert_eq!(code(|p| edited(p, "\"bytes\":7", "\"bytes\":-7")), "manifest");
    assert_eq!(code(|p| edited(p, "\"bytes\":7", &format!("\"bytes\":{}", u64::MAX))), "manifest", "the sum");
    assert_eq!(code(|p| edited(p, "\"sha256\":\"", "\"sha256\":\"0")), "manifest");
    let huge = |p: &Path| std::fs::File::create(p.join("manifest.json")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(code(huge), "manifest");
    let deep = |p: &Path| std::fs::write(p.join("manifest.json"), "[".repeat(1 << 20)).unwrap();
    assert_eq!(code(deep), "manifest");
}

#[test]
fn a_writer_that_does_not_end_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_1");
    let mut writer = DirWriter::create(&path).unwrap();
    writer.file("a", |out| out.write_all(b"a").map_err(fs::write_failed)).unwrap();
    for name in ["a", "manifest.json", "../a", "", ".a", "a/b"] {
        let e = writer.file(name, |_| Ok(())).unwrap_err();
        assert_eq!(e.code(), "manifest", "{name}");
        assert!(e.to_string().contains("step_1"), "{e}");
    }
    assert_eq!(names(dir.path()).len(), 1);
    drop(writer);
    assert!(names(dir.path()).is_empty());

    let mut writer = DirWriter::create(&path).unwrap();
    let e = writer.file("a", |_| Err(Error::resource("memory", "as if"))).unwrap_err();
    assert_eq!(e.code(), "memory");
    assert!(e.to_string().contains("step_1/a"), "{e}");
    assert_eq!(writer.commit(FORMAT).unwrap_err().code(), "incomplete");
    assert!(names(dir.path()).is_empty());

    write(&path, FILES).unwrap();
    assert_eq!(DirWriter::create(&path).unwrap_err().code(), "exists");
    let absent = DirWriter::create(&dir.path().join("absent/step_1")).unwrap_err();
    assert_eq!(absent.code(), "not found");
    let writer = DirWriter::create(&dir.path().join("step_2")).unwrap();
    std::fs::create_dir(dir.path().join("step_2")).unwrap();
    assert_eq!(writer.commit(FORMAT).unwrap_err().code(), "exists");
    assert_eq!(names(dir.path()), ["step_1", "step_2"]);
    SealedDir::open(&path, FORMAT).unwrap();
}

#[test]
fn a_panic_while_writing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_1");
    let panicked = std::panic::catch_unwind(|| {
        DirWriter::create(&path).unwrap().file("a", |_| -> Result<()> { panic!("in the middle") })
    });
    assert!(panicked.is_err());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn leftovers_are_what_bears_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str| std::fs::write(dir.path().join(name), b"x").unwrap();
    ["a.tmp-1", ".a", ".b.tmp-2"].into_iter().for_each(put);
    std::fs::create_dir_all(dir.path().join(".step_1.tmp-3/sub")).unwrap();
    std::fs::create_dir(dir.path().join("kept")).unwrap();
    put(".step_1.tmp-3/sub/f");
    put("kept/f");
    #[cfg(unix)]
    std::os::unix::fs::symlink("../kept", dir.path().join(".step_1.tmp-3/link")).unwrap();
    let removed = fs::remove_leftovers(dir.path()).unwrap();
    assert_eq!(removed, [".b.tmp-2", ".step_1.tmp-3"].map(|n| dir.path().join(n)));
    assert_eq!(names(dir.path()), [".a", "a.tmp-1", "kept"]);
    assert_eq!(names(&dir.path().join("kept")), ["f"]);
}

#[test]
fn a_lock_is_held_by_one_and_released() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = Lock::acquire(&path).unwrap();
    let e = Lock::acquire(&path).unwrap_err();
    assert_eq!((e.kind(), e.code()), (Kind::Resource, "locked"));
    assert!(e.to_string().contains("lock") && e.hint().unwrap().contains("another process"), "{e:?}");
    drop(held);
    Lock::acquire(&path).unwrap();
    assert_eq!(Lock::acquire(&dir.path().join("no/lock")).unwrap_err().code(), "not found");
}

#[cfg(target_os = "linux")]
#[test]
fn free_space_is_what_df_says() {
    let dir = tempfile::tempdir().unwrap();
    let out =
        std::process::Command::new("df").args(["--output=avail", "-B1"]).arg(dir.path()).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let df: u64 = text.lines().nth(1).unwrap().trim().parse().unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("not/there/yet")] {
        let free = fs::free_bytes(&path).unwrap();
        // Others write meanwhile.
        assert!(free.abs_diff(df) < 1 << 30, "{free} {df}");
    }
    assert!(fs::free_bytes(Path::new("relative")).is_some());
    assert_eq!(fs::free_bytes(Path::new("/proc")), None);
}
