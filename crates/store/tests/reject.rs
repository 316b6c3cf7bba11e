//! Malformed GGUF files: a table of generators, each named by what is wrong, with the code it must be refused with.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use planish_base::TypeId;
use planish_store::gguf::Gguf;
use planish_store::{Bytes, Error, Kind};
use planish_testkit::gguf_bytes::{File, Tensor, small, ty};

type Case = (String, Vec<u8>, &'static str);

fn parse(bytes: Vec<u8>) -> Result<Gguf, Error> {
    Gguf::from_bytes(Bytes::from_vec(bytes))
}

fn case(cases: &mut Vec<Case>, name: impl Into<String>, file: File, code: &'static str) {
    cases.push((name.into(), file.bytes(), code));
}

/// A file with one tensor that `change` spoils.
fn one(change: impl FnOnce(&mut Tensor)) -> File {
    let mut t = Tensor::new("t", &[8], TypeId::F32);
    change(&mut t);
    File::new().tensor(t)
}

fn dims(dims: &[u64], id: TypeId) -> File {
    File::new().tensor(Tensor::new("t", dims, id))
}

/// An entry whose key declares `len` bytes and has two.
fn key_of_length(len: u64) -> File {
    let mut entry = len.to_le_bytes().to_vec();
    entry.extend(b"ab");
    entry.extend(ty::U8.to_le_bytes());
    entry.push(0);
    File::new().kv_raw(&entry)
}

fn header_cases(c: &mut Vec<Case>) {
    for len in 0..24 {
        c.push((format!("header_of_{len}_bytes"), File::new().bytes()[..len].to_vec(), "truncated"));
    }
    for magic in [*b"FUGG", *b"GGML", *b"gguf", *b"\0\0\0\0", *b"PK\x03\x04", *b"lmgg"] {
        case(c, format!("magic_{}", magic.escape_ascii()), File::new().set(|f| f.magic = magic), "magic");
    }
    for v in [0, 4, 0x0300_0000, 0x0100_0000, u32::MAX] {
        case(c, format!("version_{v:#x}"), File::new().version(v), "version");
    }
    // 14 and 33 bytes are the least that an entry and a descriptor take: these products wrap.
    let wraps = [
        u64::MAX,
        1 << 63,
        1 << 62,
        0xffff_ffff,
        0x0555_5555_5555_555a,
        u64::MAX / 14 + 1,
        u64::MAX / 33 + 1,
    ];
    for n in wraps {
        case(c, format!("nkv_times_record_wraps_{n:#x}"), small(3).set(|f| f.n_kv = Some(n)), "count");
        case(
            c,
            format!("ntensors_times_record_wraps_{n:#x}"),
            small(3).set(|f| f.n_tensors = Some(n)),
            "count",
        );
    }
    for version in [1, 2] {
        let f = small(version).set(|f| f.n_kv = Some(0xffff_ffff));
        case(c, format!("nkv_u32_max_v{version}"), f, "count");
    }
    let padding = |n: usize| vec![0u8; n];
    case(
        c,
        "nkv_above_limit",
        File::new().set(|f| (f.n_kv, f.trailing) = (Some((1 << 16) + 1), padding(1 << 20))),
        "count",
    );
    case(
        c,
        "ntensors_above_limit",
        File::new().set(|f| (f.n_tensors, f.trailing) = (Some((1 << 17) + 1), padding(5 << 20))),
        "count",
    );
    case(c, "nkv_one_too_many", File::new().kv_u32("k", 1).set(|f| f.n_kv = Some(2)), "count");
    case(c, "nkv_one_too_few", small(3).set(|f| f.n_kv = Some(16)), "n_dims");
    case(c, "ntensors_one_too_many_into_data", small(3).set(|f| f.n_tensors = Some(4)), "tensor name");
}

fn key_cases(c: &mut Vec<Case>) {
    for len in [u64::MAX, 1 << 63, 1 << 30, 65_536, 8] {
        case(c, format!("key_length_{len:#x}"), key_of_length(len), "truncated");
    }
    let long = "k".repeat(65_536);
    case(c, "key_of_64_kib", File::new().kv_u32(&long, 1), "key");
    case(c, "key_empty", File::new().kv_u32("", 1), "key");
    case(c, "key_with_nul", File::new().kv_u32("a\0b", 1), "key");
    case(c, "key_with_newline", File::new().kv_u32("a\nb", 1), "key");
    let raw = |key: &[u8]| {
        let f = File::new();
        let mut entry = f.string(key);
        entry.extend(ty::U8.to_le_bytes());
        entry.push(1);
        f.kv_raw(&entry)
    };
    case(c, "key_not_utf8", raw(b"a\xffb"), "key");
    case(c, "key_cut_utf8", raw(b"a\xe2\x96"), "key");
    case(c, "key_twice_same_type", File::new().kv_u32("k", 1).kv_u32("k", 1), "duplicate key");
    case(
        c,
        "key_twice_other_type",
        File::new().kv_u32("k", 1).kv_str("j", "").kv_str("k", "x"),
        "duplicate key",
    );
    for number in [13, 14, 255, 256, u32::MAX] {
        case(c, format!("value_type_{number}"), File::new().kv("k", number, &[0; 16]), "value type");
    }
    for b in [2, 255] {
        case(c, format!("bool_{b}"), File::new().kv("k", ty::BOOL, &[b]), "bool");
        case(c, format!("bool_{b}_in_array"), File::new().kv_array("k", ty::BOOL, 3, &[0, 1, b]), "bool");
    }
    for a in [0, 1, 2, 3, 4, 13, 48, 131_072, 1 << 30, 1 << 31, u32::MAX] {
        case(c, format!("alignment_{a}"), File::new().kv_u32("general.alignment", a), "alignment");
    }
    let key = "general.alignment";
    case(c, "alignment_as_string", File::new().kv_str(key, "32"), "key type");
    case(c, "alignment_as_i32", File::new().kv(key, ty::I32, &[32, 0, 0, 0]), "key type");
    case(c, "alignment_as_u64", File::new().kv(key, ty::U64, &32u64.to_le_bytes()), "key type");
    case(c, "alignment_as_array", File::new().kv_array(key, ty::U32, 1, &[32, 0, 0, 0]), "key type");
}

fn value_cases(c: &mut Vec<Case>) {
    for len in [u64::MAX, 1 << 63, u64::MAX - 7, 1 << 40, 5] {
        let mut value = len.to_le_bytes().to_vec();
        value.extend(b"text");
        case(c, format!("string_length_{len:#x}"), File::new().kv("k", ty::STRING, &value), "truncated");
    }
    case(c, "string_not_utf8", File::new().kv("k", ty::STRING, &[1, 0, 0, 0, 0, 0, 0, 0, 0x80]), "utf-8");
    let not_utf8 = [1, 0, 0, 0, 0, 0, 0, 0, 0xff];
    case(c, "string_in_array_not_utf8", File::new().kv_array("k", ty::STRING, 1, &not_utf8), "utf-8");
    for n in [1 << 61, u64::MAX / 8, u64::MAX, 3] {
        case(
            c,
            format!("array_of_u64_n_times_size_wraps_{n:#x}"),
            File::new().kv_array("k", ty::U64, n, &[0; 16]),
            "count",
        );
    }
    case(c, "array_of_u8_n_max", File::new().kv_array("k", ty::U8, u64::MAX, &[0; 16]), "count");
    case(c, "array_of_u8_n_one_too_many", File::new().kv_array("k", ty::U8, 17, &[0; 16]), "count");
    for n in [u64::MAX, 1 << 61, 64, 9] {
        case(
            c,
            format!("array_of_strings_n_{n:#x}"),
            File::new().kv_array("k", ty::STRING, n, &[0; 64]),
            "count",
        );
    }
    let string_past_end = [[1, 0, 0, 0, 0, 0, 0, 0].as_slice(), b"a", &u64::MAX.to_le_bytes()].concat();
    case(
        c,
        "string_in_array_length_wraps",
        File::new().kv_array("k", ty::STRING, 2, &string_past_end),
        "truncated",
    );
    case(c, "array_of_unknown", File::new().kv_array("k", 13, 1, &[0; 16]), "value type");
    case(c, "array_of_arrays", File::new().kv_array("k", ty::ARRAY, 1, &[0; 16]), "nested array");
    let mut deep = Vec::new();
    for _ in 0..10_000 {
        deep.extend(ty::ARRAY.to_le_bytes());
        deep.extend(1u64.to_le_bytes());
    }
    case(c, "array_nested_10000_deep", File::new().kv("k", ty::ARRAY, &deep), "nested array");
    let zeros = vec![0; (64 << 20) + 1];
    let mut long = (zeros.len() as u64).to_le_bytes().to_vec();
    long.extend(zeros);
    case(c, "string_above_limit", File::new().kv("k", ty::STRING, &long), "limit");
}

fn descriptor_cases(c: &mut Vec<Case>) {
    for n in [0, 5, 255, u32::MAX] {
        case(c, format!("n_dims_{n}"), one(|t| t.n_dims = Some(n)), "n_dims");
    }
    case(c, "scalar", dims(&[], TypeId::F32), "n_dims");
    case(c, "name_empty", one(|t| t.name.clear()), "tensor name");
    case(c, "name_of_65_bytes", one(|t| t.name = vec![b'n'; 65]), "tensor name");
    case(c, "name_length_max", one(|t| t.name_len = Some(u64::MAX)), "tensor name");
    case(c, "name_not_utf8", one(|t| t.name = vec![b'a', 0xff]), "tensor name");
    case(c, "name_with_nul", one(|t| t.name = b"a\0".to_vec()), "tensor name");
    let wraps: [&[u64]; 7] = [
        &[1 << 63, 2],
        &[u64::MAX, 2, 1, 1],
        &[1 << 32, 1 << 32],
        &[1 << 21, 1 << 21, 1 << 21, 2],
        &[1 << 62],
        &[1 << 63],
        &[u64::MAX],
    ];
    for (i, d) in wraps.into_iter().enumerate() {
        case(c, format!("elements_or_bytes_wrap_{i}_f32"), dims(d, TypeId::F32), "size overflow");
    }
    case(c, "dim_negative_as_i64_i8", dims(&[1 << 63], TypeId(24)), "size overflow");
    // Others hold both counts in signed 64 bits: here the bytes fit and the elements do not, then the reverse.
    case(c, "elements_negative_as_i64_q4_k", dims(&[1 << 63], TypeId::Q4_K), "size overflow");
    case(c, "bytes_negative_as_i64_f32", dims(&[1 << 61], TypeId::F32), "size overflow");
    case(c, "dim_minus_one_i8", dims(&[u64::MAX], TypeId(24)), "size overflow");
    for d in [&[0][..], &[0, 4], &[4, 0], &[1 << 62, 1, 0], &[0, u64::MAX]] {
        case(c, format!("zero_dim_{d:?}"), dims(d, TypeId::F32), "zero dim");
    }
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 40, 255, u32::MAX] {
        case(c, format!("type_{id}"), one(|t| t.ty = id), "tensor type");
    }
    case(c, "row_33_of_q8_0", dims(&[33], TypeId::Q8_0), "row");
    case(c, "row_16_by_2_of_q8_0", dims(&[16, 2], TypeId::Q8_0), "row");
    case(c, "row_128_of_q4_k", dims(&[128, 2], TypeId::Q4_K), "row");
    for t in planish_base::layout::LAYOUTS.iter().filter(|l| l.block > 1) {
        case(c, format!("row_of_one_more_than_a_block_{}", t.name), dims(&[t.block + 1], t.id), "row");
    }
    case(
        c,
        "tensor_twice",
        File::new().with("t", &[8], TypeId::F32).with("u", &[8], TypeId::F32).with("t", &[8], TypeId::F32),
        "duplicate tensor",
    );
    let huge =
        |n: u64| (0..n).fold(File::new(), |f, i| f.with(&format!("t{i}"), &[(1 << 63) - 1], TypeId(24)));
    case(c, "padded_sizes_sum_wraps", huge(2), "size overflow");
}

fn placement_cases(c: &mut Vec<Case>) {
    for offset in [1, 3, 8, 31, 33, u64::MAX] {
        case(c, format!("offset_unaligned_{offset:#x}"), one(|t| t.offset = Some(offset)), "offset");
    }
    for offset in [4096, 1 << 40, 1 << 63, u64::MAX - 31] {
        case(c, format!("offset_beyond_file_{offset:#x}"), one(|t| t.offset = Some(offset)), "offset");
    }
    case(c, "offset_at_end", one(|t| t.offset = Some(32)), "tensor exceeds file");
    case(
        c,
        "last_tensor_one_byte_past_end",
        one(|t| t.data.truncate(31)).set(|f| f.final_padding = false),
        "tensor exceeds file",
    );
    case(c, "data_missing", one(|t| t.data.clear()), "tensor exceeds file");
    case(c, "tensor_larger_than_any_file", dims(&[1 << 60], TypeId::F32), "tensor exceeds file");
    let two = |offset: u64, elements: u64| {
        let mut second = Tensor::new("u", &[elements], TypeId::F32);
        second.offset = Some(offset);
        File::new().with("t", &[16], TypeId::F32).tensor(second)
    };
    case(c, "identical_ranges", two(0, 16), "overlap");
    case(c, "overlap_by_one_block", two(32, 16), "overlap");
    case(c, "inside_another", two(32, 1), "overlap");
    let mut outer = Tensor::new("outer", &[24], TypeId::F32);
    outer.offset = Some(0);
    let mut inner = Tensor::new("inner", &[2], TypeId::F32);
    inner.offset = Some(64);
    case(c, "overlap_listed_backwards", File::new().tensor(inner).tensor(outer), "overlap");
}

fn cases() -> Vec<Case> {
    let mut c = Vec::new();
    header_cases(&mut c);
    key_cases(&mut c);
    value_cases(&mut c);
    descriptor_cases(&mut c);
    placement_cases(&mut c);
    c
}

/// Whether the message says where: a byte offset, or at least the tensor or key.
fn says_where(message: &str) -> bool {
    ["byte ", "bytes ", "offset ", "descriptors "].iter().any(|w| message.contains(w))
}

#[test]
fn every_malformed_file_is_refused_with_its_code_and_place() {
    let mut wrong = Vec::new();
    let cases = cases();
    for (name, bytes, code) in &cases {
        let bytes = Bytes::from_vec(bytes.clone());
        let started = Instant::now();
        let result = Gguf::from_bytes(bytes);
        let took = started.elapsed();
        match result {
            Ok(_) => wrong.push(format!("{name}: accepted, expected [{code}]")),
            Err(e) if e.code() != *code => wrong.push(format!("{name}: {e:?}, expected [{code}]")),
            Err(e) if e.kind() != Kind::Input || !says_where(&e.to_string()) => {
                wrong.push(format!("{name}: {e:?} has no place or is not an input error"));
            }
            Err(_) => {}
        }
        if took > Duration::from_millis(500) {
            wrong.push(format!("{name}: took {took:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= 150, "only {} cases", cases.len());
}

#[test]
fn names_of_cases_are_unique() {
    let mut names: Vec<String> = cases().into_iter().map(|(name, _, _)| name).collect();
    names.sort();
    let n = names.len();
    names.dedup();
    assert_eq!(names.len(), n);
}

#[test]
fn every_prefix_is_refused_until_only_the_last_padding_is_missing() {
    for version in [1, 2, 3] {
        let bytes = small(version).bytes();
        let gguf = parse(bytes.clone()).unwrap();
        let end = gguf.tensors().iter().map(|t| t.offset + t.bytes).max().unwrap() as usize;
        assert!(end < bytes.len());
        for len in 0..bytes.len() {
            let result = parse(bytes[..len].to_vec());
            if len >= end {
                result.unwrap();
                continue;
            }
            let e = result.unwrap_err();
            assert!(
                ["truncated", "count", "offset", "tensor exceeds file"].contains(&e.code()),
                "v{version}, {len} of {}: {e:?}",
                bytes.len()
            );
            assert!(e.hint().is_some());
        }
    }
}

#[test]
fn the_same_bytes_give_the_same_error_each_time() {
    let bytes = small(3).set(|f| f.trailing = vec![1]).with("x", &[0], TypeId::F32).bytes();
    let first = format!("{:?}", parse(bytes.clone()).unwrap_err());
    for _ in 0..200 {
        assert_eq!(format!("{:?}", parse(bytes.clone()).unwrap_err()), first);
    }
}

#[test]
fn hints_say_what_a_foreign_file_is() {
    let hint = |bytes: &[u8]| parse(bytes.to_vec()).unwrap_err().hint().unwrap_or_default().to_string();
    let mut safetensors = 2u64.to_le_bytes().to_vec();
    safetensors.extend(b"{}");
    assert!(hint(&safetensors).contains("safetensors"));
    assert!(hint(b"PK\x03\x04....").contains("PyTorch"));
    assert!(hint(b"lmgg\x01\0\0\0").contains("old ggml"));
    assert!(hint(b"tjgg\x03\0\0\0").contains("old ggml"));
    assert!(hint(b"version https://git-lfs.github.com/spec/v1\n").contains("LFS"));
    assert!(hint(b"<!DOCTYPE html>").contains("web page"));
    assert!(hint(&File::new().version(3 << 24).bytes()).contains("big-endian"));
    assert!(hint(b"what is this").contains("GGUF"));
}

#[test]
fn a_removed_type_is_named() {
    let e = parse(one(|t| t.ty = 4).bytes()).unwrap_err();
    assert!(e.to_string().contains("q4_2"), "{e}");
    let e = parse(one(|t| t.ty = 77).bytes()).unwrap_err();
    assert!(e.to_string().contains("77"), "{e}");
}

#[test]
fn open_names_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let e = Gguf::open(&dir.path().join("absent.gguf")).unwrap_err();
    assert_eq!((e.code(), e.kind()), ("not found", Kind::Input));
    assert!(e.to_string().contains("absent.gguf"));
    assert_eq!(Gguf::open(dir.path()).unwrap_err().code(), "not a file");
    let path = dir.path().join("empty.gguf");
    planish_store::fs::write_atomic(&path, |_| Ok(())).unwrap();
    let e = Gguf::open(&path).unwrap_err();
    assert_eq!(e.code(), "truncated");
    assert!(e.to_string().contains("empty.gguf"));
    #[cfg(unix)]
    assert_eq!(Gguf::open(std::path::Path::new("/dev/zero")).unwrap_err().code(), "not a file");
}

/// `head`, then zeros that the allocator need not touch, up to `len` bytes.
fn zero_extended(head: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..head.len()].copy_from_slice(head);
    bytes
}

#[test]
fn limits_hold_where_the_bytes_are_really_there() {
    let started = Instant::now();
    let strings = File::new().kv_array("k", ty::STRING, (1 << 24) + 1, &[]).bytes();
    let e = parse(zero_extended(&strings, (129 << 20) + 4096)).unwrap_err();
    assert_eq!(e.code(), "limit", "{e:?}");
    let numbers =
        |n: u64| zero_extended(&File::new().kv_array("k", ty::U8, n, &[]).bytes(), (n + 4096) as usize);
    assert_eq!(parse(numbers(300 << 20)).unwrap_err().code(), "limit");
    // An array of numbers stays in the file, whatever its length.
    let g = parse(numbers(64 << 20)).unwrap();
    assert_eq!(g.metadata().array_len("k"), Some(64 << 20));
    assert!(started.elapsed() < Duration::from_secs(5));
}
