//! GGUF files that must open, what they then say, and the writer's round trips.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use planish_base::TypeId;
use planish_store::gguf::{Gguf, OwnedValue, Value, ValueType, Writer};
use planish_store::{Bytes, Error, Kind, fs};
use planish_testkit::gguf_bytes::{File, Tensor, small, ty};

fn open(file: &File) -> Gguf {
    Gguf::from_bytes(Bytes::from_vec(file.bytes())).unwrap()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read_bounded(path, 1 << 24).unwrap()
}

/// Writes everything of `from` again.
fn rewrite(from: &Gguf, path: &Path) {
    let mut w = Writer::new();
    w.copy_metadata(from.metadata(), |_| true);
    for t in from.tensors() {
        w.tensor(&t.name, &t.dims, t.ty).unwrap();
    }
    w.write(path, |i, out| out.write_all(from.data(&from.tensors()[i])).map_err(fs::write_failed)).unwrap();
    assert_eq!(w.size(), fs::file_len(path).unwrap());
}

#[test]
fn all_versions_say_the_same() {
    for version in [1, 2, 3] {
        let g = open(&small(version));
        let m = g.metadata();
        assert_eq!((g.version(), g.alignment(), m.len()), (version, 32, 17));
        assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(m.require_u32("llama.block_count").unwrap(), 2);
        assert_eq!(m.u32("a.u8").unwrap(), Some(200));
        assert_eq!(m.get("a.i8"), Some(Value::I8(-1)));
        assert_eq!(m.u64("a.u16").unwrap(), Some(0x201));
        assert_eq!(m.get("a.i16"), Some(Value::I16(-2)));
        assert_eq!(m.get("a.i32"), Some(Value::I32(-5)));
        assert_eq!(m.f32("a.f32").unwrap(), Some(1.5));
        assert_eq!(m.bool("a.bool").unwrap(), Some(true));
        assert_eq!(m.u64("a.u64").unwrap(), Some(u64::MAX));
        assert_eq!(m.get("a.i64"), Some(Value::I64(i64::MIN)));
        assert_eq!(m.get("a.f64"), Some(Value::F64(0.25)));
        assert_eq!(m.strings("tokenizer.ggml.tokens").unwrap().unwrap(), ["a", "", "\u{2581}bc"]);
        assert_eq!(m.i32s("tokenizer.ggml.token_type").unwrap().unwrap(), [1, 2, 3]);
        assert_eq!(m.u32s("tokenizer.ggml.token_type").unwrap().unwrap(), [1, 2, 3]);
        assert_eq!(m.f32s("scores").unwrap().unwrap(), [2.5]);
        assert_eq!(m.bools("pattern").unwrap().unwrap(), [false, true]);
        assert_eq!(m.strings("empty").unwrap().unwrap(), [""; 0]);
        assert_eq!(m.array_len("tokenizer.ggml.tokens"), Some(3));
        assert_eq!(m.array_len("a.u8"), None);
        assert_eq!(m.iter().next().unwrap().0, "general.architecture");

        let names: Vec<_> = g.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"]);
        let q = g.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!((q.dims.as_slice(), q.ty, q.bytes, q.elements()), (&[64, 2][..], TypeId::Q8_0, 136, 128));
        let expected: Vec<u8> = (0..136).map(|i| i as u8).collect();
        assert_eq!(g.data(q), expected);
        assert_eq!(&g.bytes()[q.offset as usize..][..136], expected);
        assert!(g.tensor("absent").is_none());
        assert!(g.is_packed());
    }
}

#[test]
fn a_key_of_another_type_is_an_error_that_names_it() {
    let g = open(&small(3));
    let m = g.metadata();
    let check = |e: Error, parts: &[&str]| {
        assert_eq!((e.code(), e.kind()), ("key type", Kind::Input));
        for part in parts {
            assert!(e.to_string().contains(part), "{e}");
        }
    };
    check(m.u32("general.architecture").unwrap_err(), &["general.architecture", "is string", "expected u32"]);
    check(m.str("a.u8").unwrap_err(), &["a.u8", "u8 200", "expected string"]);
    check(m.u32("a.i32").unwrap_err(), &["i32 -5"]);
    check(m.u32("a.u64").unwrap_err(), &["u64 18446744073709551615"]);
    check(m.f32("a.f64").unwrap_err(), &["f64", "expected f32"]);
    check(m.strings("scores").unwrap_err(), &["scores[0]", "expected string"]);
    check(m.strings("a.u8").unwrap_err(), &["array of string"]);
    assert_eq!(m.u32("absent").unwrap(), None);
    assert_eq!(m.strings("absent").unwrap(), None);
    assert_eq!(m.require_str("absent").unwrap_err().code(), "missing key");
    assert_eq!(m.require_f32("absent").unwrap_err().code(), "missing key");
    let big = open(&File::new().kv_array("k", ty::U64, 1, &u64::MAX.to_le_bytes()));
    check(big.metadata().i32s("k").unwrap_err(), &["k[0]", "expected i32"]);
}

#[test]
fn layouts_that_must_open() {
    let missing_padding = small(3).set(|f| f.final_padding = false);
    assert_eq!(open(&missing_padding).tensors().len(), 3);

    let empty = open(&File::new());
    assert!(empty.metadata().is_empty() && empty.tensors().is_empty() && empty.is_packed());
    assert_eq!(open(&File::new().kv_u32("k", 1)).metadata().len(), 1);

    // Trailing bytes are never read.
    assert_eq!(open(&small(3).set(|f| f.trailing = b"PK\x05\x06".to_vec())).tensors().len(), 3);
    assert_eq!(open(&File::new().set(|f| f.trailing = vec![7; 99])).tensors().len(), 0);

    for alignment in [8usize, 16, 64, 4096, 65_536] {
        let f = small(3).kv_u32("general.alignment", alignment as u32).set(|f| f.alignment = alignment);
        let g = open(&f);
        assert_eq!(g.alignment(), alignment as u64);
        assert!(g.is_packed());
        assert!(g.tensors().iter().all(|t| t.offset.is_multiple_of(alignment as u64)));
    }

    let at = |name: &str, offset| {
        let mut t = Tensor::new(name, &[8], TypeId::F32);
        t.offset = Some(offset);
        t
    };
    let backwards = open(&File::new().tensor(at("a", 32)).tensor(at("b", 0)));
    assert!(!backwards.is_packed());
    let a = backwards.tensor("a").unwrap();
    assert_eq!(a.offset, backwards.data_start() + 32);
    let hole = File::new().tensor(at("a", 0)).tensor(at("b", 64)).set(|f| f.trailing = vec![0; 32]);
    assert!(!open(&hole).is_packed());

    let name = "n".repeat(64);
    assert!(open(&File::new().with(&name, &[1, 1, 1, 1], TypeId::F32)).tensor(&name).is_some());
    assert!(open(&File::new().kv_u32("Upper case.key", 1)).metadata().contains("Upper case.key"));
    let long = "k".repeat(65_535);
    assert!(open(&File::new().kv_u32(&long, 1)).metadata().contains(&long));
}

#[test]
fn large_vocabularies_and_many_tensors_open() {
    let tokens: Vec<String> = (0..262_144).map(|i| format!("t{i}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut f = File::new().kv_strings("tokens", &tokens).kv_str("json", &"x".repeat(17 << 20));
    for i in 0..2_000 {
        f = f.with(&format!("blk.{i}.w"), &[1], TypeId::F32);
    }
    let g = open(&f);
    let read = g.metadata().strings("tokens").unwrap().unwrap();
    assert_eq!((read.len(), read[262_143]), (262_144, "t262143"));
    assert_eq!(g.tensor("blk.1999.w").unwrap().name, "blk.1999.w");
}

#[test]
fn work_grows_with_the_file_and_no_faster() {
    let started = std::time::Instant::now();
    let mut f = File::new();
    for i in 0..65_536 {
        f = f.kv(&format!("k{i}"), ty::U8, &[0]);
    }
    for i in 0..100_000 {
        f = f.with(&format!("t{i}"), &[1], TypeId::F32);
    }
    let g = open(&f);
    assert_eq!((g.metadata().len(), g.tensors().len()), (65_536, 100_000));
    let mut w = Writer::new();
    w.copy_metadata(g.metadata(), |_| true);
    for t in g.tensors() {
        w.tensor(&t.name, &t.dims, t.ty).unwrap();
    }
    assert_eq!(w.size(), g.bytes().len() as u64);
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn a_rewritten_file_is_the_same_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    for alignment in [32, 64] {
        let f = small(3)
            .kv("vendor.unknown key", ty::I8, &[9])
            .kv_u32("general.alignment", alignment)
            .kv_array("z.u16s", ty::U16, 3, &[1, 0, 2, 0, 3, 0])
            .set(|f| f.alignment = alignment as usize);
        rewrite(&open(&f), &path);
        assert_eq!(read(&path), f.bytes());
        // The copy of a copy, through a map.
        rewrite(&Gguf::open(&path).unwrap(), &path);
        assert_eq!(read(&path), f.bytes());
    }
    // Versions 1 and 2 become 3; missing padding is added.
    for version in [1, 2] {
        rewrite(&open(&small(version).set(|f| f.final_padding = false)), &path);
        assert_eq!(read(&path), small(3).bytes());
    }
    rewrite(&open(&File::new().kv_u32("k", 1)), &path);
    assert_eq!(read(&path), File::new().kv_u32("k", 1).bytes());
}

#[test]
fn set_replaces_in_place_or_appends_and_remove_removes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let from = open(&small(2));
    let mut w = Writer::new();
    w.set("first", "x".into());
    w.set("a.u8", OwnedValue::U8(1));
    w.copy_metadata(from.metadata(), |k| k.starts_with("a.") || k == "pattern");
    w.set("a.i32", OwnedValue::Strings(vec!["p".into(), "q".into()]));
    w.set("last", OwnedValue::F32s(vec![0.5]));
    w.remove("a.f64");
    w.remove("absent");
    w.write(&path, |_, _| Ok(())).unwrap();
    let g = Gguf::open(&path).unwrap();
    let keys: Vec<_> = g.metadata().iter().map(|(k, _)| k).collect();
    let expected = [
        "first", "a.u8", "a.i8", "a.u16", "a.i16", "a.i32", "a.f32", "a.bool", "a.u64", "a.i64", "pattern",
        "last",
    ];
    assert_eq!(keys, expected);
    assert_eq!(g.metadata().get("a.u8"), Some(Value::U8(200)));
    assert_eq!(g.metadata().strings("a.i32").unwrap().unwrap(), ["p", "q"]);
    assert_eq!(g.metadata().f32s("last").unwrap().unwrap(), [0.5]);
}

#[test]
fn every_owned_value_reads_back_as_its_type() {
    use OwnedValue as O;
    use ValueType as T;
    let values = [
        (O::U8(1), T::U8),
        (O::I8(-1), T::I8),
        (O::U16(2), T::U16),
        (O::I16(-2), T::I16),
        (O::U32(3), T::U32),
        (O::I32(-3), T::I32),
        (O::F32(0.5), T::F32),
        (O::Bool(true), T::Bool),
        (O::Str("s".into()), T::Str),
        (O::U64(4), T::U64),
        (O::I64(-4), T::I64),
        (O::F64(0.25), T::F64),
    ];
    let arrays = [
        (O::Strings(vec!["s".into()]), T::Str),
        (O::F32s(vec![1.0]), T::F32),
        (O::I32s(vec![-1]), T::I32),
        (O::U32s(vec![1]), T::U32),
        (O::U8s(vec![1]), T::U8),
        (O::Bools(vec![true]), T::Bool),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let mut w = Writer::new();
    for (i, (v, _)) in values.iter().chain(&arrays).enumerate() {
        w.set(&format!("k{i}"), v.clone());
    }
    w.write(&path, |_, _| Ok(())).unwrap();
    let g = Gguf::open(&path).unwrap();
    let types: Vec<_> = g
        .metadata()
        .iter()
        .map(|(_, v)| match v {
            Value::Array(a) => a.element_type(),
            v => v.value_type(),
        })
        .collect();
    assert_eq!(types, values.iter().chain(&arrays).map(|(_, t)| *t).collect::<Vec<_>>());
}

#[test]
fn the_writer_refuses_what_could_not_be_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let mut w = Writer::new();
    let mut refused = |name: &str, dims: &[u64], id| w.tensor(name, dims, id).unwrap_err().code();
    assert_eq!(refused("", &[1], TypeId::F32), "tensor name");
    assert_eq!(refused(&"n".repeat(64), &[1], TypeId::F32), "tensor name");
    assert_eq!(refused("t", &[], TypeId::F32), "n_dims");
    assert_eq!(refused("t", &[1, 1, 1, 1, 1], TypeId::F32), "n_dims");
    assert_eq!(refused("t", &[1, 0], TypeId::F32), "zero dim");
    assert_eq!(refused("t", &[33], TypeId::Q8_0), "row");
    assert_eq!(refused("t", &[1 << 62], TypeId::F32), "size overflow");
    assert_eq!(refused("t", &[1], TypeId(4)), "tensor type");
    w.tensor("t", &[2], TypeId::F32).unwrap();
    assert_eq!(w.tensor("t", &[2], TypeId::F32).unwrap_err().code(), "duplicate tensor");

    let code = |w: &Writer, n: usize| {
        let fill =
            |_: usize, out: &mut dyn std::io::Write| out.write_all(&vec![1; n]).map_err(fs::write_failed);
        w.write(&path, fill).map_err(|e| e.code())
    };
    assert_eq!(code(&w, 7), Err("tensor bytes"));
    assert_eq!(code(&w, 9), Err("tensor bytes"));
    assert!(!fs::exists(&path));
    assert_eq!(fs::list_dir(dir.path()).unwrap().len(), 0, "no temporary is left");
    w.set("general.alignment", OwnedValue::U32(12));
    assert_eq!(code(&w, 8), Err("alignment"));
    w.set("general.alignment", OwnedValue::U64(64));
    assert_eq!(code(&w, 8), Err("key type"));
    w.set("general.alignment", OwnedValue::U32(64));
    assert_eq!(code(&w, 8), Ok(()));
    let mut bad_key = w.clone();
    bad_key.set("", OwnedValue::Bool(true));
    assert_eq!(code(&bad_key, 8), Err("key"));
    let before = read(&path);
    let failed = w.write(&path, |_, _| Err(Error::resource("disk full", "as if")));
    assert_eq!(failed.unwrap_err().code(), "disk full");
    assert_eq!(read(&path), before, "a failed write leaves the file as it was");
}
