//! The file system module: what errors say, what a failed write leaves, bounded reads.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "the state on the disk is compared with what std::fs says")]

use std::path::Path;

use planish_store::fs::{self, AppendLog, Lines};
use planish_store::{Bytes, Error, Kind};

fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let list = fs::list_dir(dir).unwrap();
    list.iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write_atomic(&path, |out| out.write_all(b"one").map_err(fs::write_failed)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
    let mapped = Bytes::map(&path).unwrap();

    let e = fs::write_atomic(&path, |out| {
        out.write_all(&vec![0; 3 << 20]).map_err(fs::write_failed)?;
        Err(fs::write_failed(std::io::ErrorKind::StorageFull.into()))
    })
    .unwrap_err();
    assert_eq!((e.kind(), e.code()), (Kind::Resource, "disk full"));
    assert!(e.to_string().contains(path.to_str().unwrap()) && e.hint().unwrap().contains("space"), "{e:?}");
    assert_eq!(names(dir.path()), ["f"], "no temporary is left");
    assert_eq!(std::fs::read(&path).unwrap(), b"one");

    fs::write_atomic(&path, |out| out.write_all(b"three").map_err(fs::write_failed)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
    assert_eq!(&mapped[..], b"one", "a map keeps the file it was made of");
    let clone = mapped.clone();
    drop(mapped);
    assert_eq!(clone.len(), 3);

    let panicked = std::panic::catch_unwind(|| {
        fs::write_atomic(&path, |_| -> Result<(), Error> { panic!("in the middle") })
    });
    assert!(panicked.is_err());
    assert_eq!(names(dir.path()), ["f"]);
}

#[cfg(unix)]
#[test]
fn a_new_file_has_the_usual_mode_and_a_link_is_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
    put(&plain, b"p");
    fs::write_atomic(&ours, |_| Ok(())).unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&ours), mode(&plain));

    let link = dir.path().join("latest");
    fs::symlink_replace(Path::new("plain"), &link).unwrap();
    assert_eq!(std::fs::read(&link).unwrap(), b"p");
    fs::symlink_replace(Path::new("ours"), &link).unwrap();
    assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("ours"));
    fs::write_atomic(&link, |out| out.write_all(b"new").map_err(fs::write_failed)).unwrap();
    assert!(!link.is_symlink());
    assert_eq!(std::fs::read(&ours).unwrap(), b"", "the link's target is untouched");
    assert_eq!(names(dir.path()), ["latest", "ours", "plain"]);
}

#[test]
fn a_directory_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step_2");
    let fill = |tmp: &Path| {
        fs::create_dir_all(&tmp.join("sub"))?;
        fs::write_atomic(&tmp.join("sub/a"), |out| out.write_all(b"a").map_err(fs::write_failed))
    };
    let failed = fs::write_dir_atomic(&path, |tmp| fill(tmp).and(Err(Error::resource("disk full", "as if"))));
    assert_eq!(failed.unwrap_err().code(), "disk full");
    assert!(names(dir.path()).is_empty());
    fs::write_dir_atomic(&path, fill).unwrap();
    assert_eq!(std::fs::read(path.join("sub/a")).unwrap(), b"a");
    assert_eq!(fs::write_dir_atomic(&path, fill).unwrap_err().code(), "exists");
    assert_eq!(names(dir.path()), ["step_2"]);
    fs::remove_dir_all(&path).unwrap();
    assert!(!fs::exists(&path));
}

#[test]
fn errors_say_the_path_and_the_kind() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent/f");
    let e = fs::read_bounded(&absent, 10).unwrap_err();
    assert_eq!((e.kind(), e.code()), (Kind::Input, "not found"));
    assert!(e.to_string().contains("absent"));
    assert_eq!(fs::write_atomic(&absent, |_| Ok(())).unwrap_err().code(), "not found");
    assert_eq!(fs::write_atomic(dir.path(), |_| Ok(())).unwrap_err().code(), "not a file");
    assert_eq!(fs::write_atomic(Path::new("/"), |_| Ok(())).unwrap_err().code(), "not a file");
    assert_eq!(fs::read_bounded(dir.path(), 10).unwrap_err().code(), "not a file");
    assert_eq!(Bytes::map(dir.path()).unwrap_err().code(), "not a file");
    put(&dir.path().join("file"), b"12345");
    let below = dir.path().join("file/below");
    assert_eq!(fs::create_dir_all(&below).unwrap_err().code(), "not a directory");
    assert_eq!(fs::check_writable_dir(&below).unwrap_err().code(), "not a directory");
    let fresh = dir.path().join("a/b");
    fs::check_writable_dir(&fresh).unwrap();
    assert!(fs::is_dir(&fresh) && names(&fresh).is_empty());
    assert_eq!(fs::file_len(&dir.path().join("file")).unwrap(), 5);
    fs::remove_file(&dir.path().join("file")).unwrap();
    assert_eq!(fs::remove_file(&dir.path().join("file")).unwrap_err().code(), "not found");
    let denied = fs::write_failed(std::io::ErrorKind::PermissionDenied.into());
    assert_eq!((denied.kind(), denied.code()), (Kind::Resource, "permission"));
    assert!(denied.hint().is_some());
}

#[test]
fn reads_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    put(&path, b"\xef\xbb\xbf12345");
    assert_eq!(fs::read_bounded(&path, 8).unwrap().len(), 8);
    let e = fs::read_bounded(&path, 7).unwrap_err();
    assert_eq!(e.code(), "too large");
    assert!(e.to_string().contains("8 bytes") && e.to_string().contains('7'));
    assert_eq!(fs::read_text_bounded(&path, 8).unwrap(), "12345");
    put(&path, b"ab\xff");
    let e = fs::read_text_bounded(&path, 8).unwrap_err();
    assert_eq!(e.code(), "utf-8");
    assert!(e.to_string().contains("byte 2"));
    put(&path, b"");
    assert!(Bytes::map(&path).unwrap().is_empty());
}

#[test]
fn lines_know_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    let read = |bytes: &[u8], limit: usize| -> Result<Vec<(u64, String)>, Error> {
        put(&path, bytes);
        let mut lines = Lines::open(&path, limit)?;
        let mut out = Vec::new();
        while let Some((n, line)) = lines.next_line()? {
            out.push((n, line.to_string()));
        }
        Ok(out)
    };
    let text = |bytes: &[u8]| read(bytes, 5).unwrap().into_iter().map(|(_, l)| l).collect::<Vec<_>>();
    assert_eq!(text(b""), [""; 0]);
    assert_eq!(text(b"a\nb"), ["a", "b"]);
    assert_eq!(text(b"a\r\n\r\nb\r\n"), ["a", "", "b"]);
    assert_eq!(text(b"\xef\xbb\xbfa\n\xef\xbb\xbfb"), ["a", "\u{feff}b"]);
    assert_eq!(text(b"12345\r\n12345\n12345"), ["12345"; 3]);
    assert_eq!(text(b"\xef\xbb\xbf12345\r\n"), ["12345"]);
    assert_eq!(read(b"a\nb", 5).unwrap(), [(1, "a".to_string()), (2, "b".to_string())]);
    for long in [b"ok\n123456\n".as_slice(), b"ok\n123456", &[b"ok\n".as_slice(), &[b'x'; 5000]].concat()] {
        let e = read(long, 5).unwrap_err();
        assert_eq!(e.code(), "line too long");
        assert!(e.to_string().contains("data.jsonl:2: "), "{e}");
    }
    let e = read(b"ok\nok\n\xff\n", 5).unwrap_err();
    assert_eq!(e.code(), "utf-8");
    assert!(e.to_string().contains("data.jsonl:3: "), "{e}");
    assert_eq!(Lines::open(dir.path(), 5).unwrap_err().code(), "not a file");
}

#[test]
fn a_log_holds_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let mut log = AppendLog::create(&path).unwrap();
    log.append_line("one").unwrap();
    assert_eq!(log.append_line("two\nlines").unwrap_err().code(), "line");
    AppendLog::create(&path).unwrap().append_line("two").unwrap();
    log.append_line("three").unwrap();
    log.sync().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
    put(&path, b"one\ncut sh");
    AppendLog::create(&path).unwrap().append_line("two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one\ncut sh\ntwo\n");
    assert_eq!(AppendLog::create(&dir.path().join("no/log")).unwrap_err().code(), "not found");
}

#[test]
fn hashes_are_those_of_the_standard() {
    // FIPS 180-2, appendix B.1.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(fs::sha256(b"abc"), abc);
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("f"), b"abc");
    assert_eq!(fs::sha256_file(&dir.path().join("f")).unwrap(), abc);
}
