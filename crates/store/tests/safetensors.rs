//! safetensors: round trips, agreement with the reference crate's writer, and hostile headers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use planish_store::safetensors::{Dtype, SafeTensors, write};
use planish_store::{Bytes, Kind, fs};

type Given = (String, Dtype, Vec<usize>, Vec<u8>);

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn code(bytes: Vec<u8>) -> Result<usize, &'static str> {
    SafeTensors::from_bytes(Bytes::from_vec(bytes)).map(|s| s.len()).map_err(|e| {
        assert_eq!(e.kind(), Kind::Input);
        e.code()
    })
}

fn given() -> Vec<Given> {
    vec![
        ("b.weight".into(), Dtype::BF16, vec![2, 3], (0..12).collect()),
        ("a.weight".into(), Dtype::F32, vec![2], (0..8).collect()),
        ("scalar".into(), Dtype::F32, vec![], vec![1, 2, 3, 4]),
        ("nothing".into(), Dtype::F16, vec![0, 4], vec![]),
        ("ids".into(), Dtype::I64, vec![1], vec![9; 8]),
        ("flag \"quoted\" \u{e9}".into(), Dtype::BOOL, vec![1], vec![1]),
    ]
}

#[test]
fn what_is_written_reads_back_the_same_and_always_in_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let metadata: BTreeMap<String, String> =
        ["format", "b", "a", "c"].iter().map(|k| (k.to_string(), "pt".to_string())).collect();
    write(&path, &given(), &metadata).unwrap();
    let first = fs::read_bounded(&path, 4096).unwrap();
    let s = SafeTensors::open(&path).unwrap();
    assert_eq!(s.metadata(), &metadata);
    assert_eq!(s.len(), 6);
    for (name, dtype, shape, data) in given() {
        let t = s.get(&name).unwrap();
        assert_eq!((t.dtype, t.shape, t.data), (dtype, shape, data.as_slice()), "{name}");
    }
    assert!(s.get("absent").is_none());
    let names: Vec<_> = s.names().collect();
    assert_eq!(names[0], "ids", "the largest alignment comes first");

    let mut backwards = given();
    backwards.reverse();
    write(&path, &backwards, &metadata).unwrap();
    assert_eq!(fs::read_bounded(&path, 4096).unwrap(), first);
    assert_eq!((first.len() - 33) % 8, 0, "the data is aligned");
}

#[test]
fn the_bytes_are_those_of_the_reference_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // One key: the reference writes metadata in the order of a hash map.
    let metadata: BTreeMap<String, String> = [("format".to_string(), "pt".to_string())].into();
    write(&path, &given(), &metadata).unwrap();
    let given = given();
    let views = given.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let expected = safetensors::serialize(views, Some(metadata.into_iter().collect())).unwrap();
    assert_eq!(fs::read_bounded(&path, 4096).unwrap(), expected);
}

#[test]
fn what_does_not_fit_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let refused = |t: Vec<Given>| write(&path, &t, &BTreeMap::new()).unwrap_err().code();
    let one = |name: &str, shape: Vec<usize>, n: usize| (name.to_string(), Dtype::F32, shape, vec![0; n]);
    assert_eq!(refused(vec![one("a", vec![2], 7)]), "tensor bytes");
    assert_eq!(refused(vec![one("a", vec![1], 4), one("a", vec![1], 4)]), "duplicate tensor");
    assert_eq!(refused(vec![one("__metadata__", vec![1], 4)]), "tensor name");
    assert_eq!(refused(vec![one("a", vec![usize::MAX, 2], 0)]), "size overflow");
    assert!(!fs::exists(&path));
}

#[test]
fn good_headers_open() {
    assert_eq!(code(file("{}", 0)), Ok(0));
    assert_eq!(code(file("{}   ", 0)), Ok(0));
    let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    assert_eq!(code(file(&format!("{{{a}}}"), 8)), Ok(1));
    assert_eq!(code(file(&format!(r#"{{"__metadata__":{{"k":"v"}},{a}}}"#), 8)), Ok(1));
    // Names before the data they come after.
    let b = r#""b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}"#;
    let s = SafeTensors::from_bytes(Bytes::from_vec(file(&format!("{{{b},{a}}}"), 9))).unwrap();
    assert_eq!(s.names().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn hostile_headers_are_errors() {
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let good = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let length = |n: u64| [n.to_le_bytes().as_slice(), b"{}"].concat();
    let nested = format!(r#"{{"__metadata__":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let digits = format!("[{}1]", "1,".repeat(100_000));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "truncated"),
        ("seven_bytes", vec![0; 7], "truncated"),
        ("length_zero", length(0), "header"),
        ("length_one_more", length(3), "truncated"),
        ("length_max", length(u64::MAX), "limit"),
        ("length_wraps", length(u64::MAX - 7), "limit"),
        ("length_above_100_mb", length(100_000_001), "limit"),
        ("length_one_less", length(1), "header"),
        ("not_json", file("{not json}", 0), "header"),
        ("array", file("[]", 0), "header"),
        ("leading_blank", file(" {}", 0), "header"),
        ("trailing_text", file("{}x", 0), "header"),
        ("not_utf8", [4u64.to_le_bytes().as_slice(), b"{\"\xff}"].concat(), "header"),
        ("unknown_dtype", file(&tensor("F7", "[1]", "[0,1]"), 1), "header"),
        (
            "unknown_field",
            file(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}"#, 1),
            "header",
        ),
        ("missing_field", file(r#"{"a":{"dtype":"U8","shape":[1]}}"#, 1), "header"),
        ("name_twice", file(&format!(r#"{{"a":{good},"a":{good}}}"#), 1), "header"),
        ("name_twice_escaped", file(&format!(r#"{{"a":{good},"\u0061":{good}}}"#), 1), "header"),
        ("metadata_twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "header"),
        ("metadata_key_twice", file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0), "header"),
        ("metadata_number", file(r#"{"__metadata__":{"a":1}}"#, 0), "header"),
        ("metadata_nested_10000_deep", file(&nested, 0), "header"),
        ("shape_of_100000_dims", file(&tensor("U8", &digits, "[0,1]"), 1), "header"),
        ("shape_of_9_dims", file(&tensor("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), "header"),
        ("shape_negative", file(&tensor("U8", "[-1]", "[0,1]"), 1), "header"),
        ("shape_minus_zero", file(&tensor("U8", "[-0]", "[0,0]"), 0), "header"),
        ("shape_exponent", file(&tensor("U8", "[1e3]", "[0,1000]"), 1000), "header"),
        ("shape_2_to_64", file(&tensor("U8", "[18446744073709551616]", "[0,1]"), 1), "header"),
        ("elements_wrap", file(&tensor("U8", "[9223372036854775808,2]", "[0,0]"), 0), "size overflow"),
        ("bits_wrap", file(&tensor("F32", "[4611686018427387904]", "[0,0]"), 0), "size overflow"),
        ("offsets_reversed", file(&tensor("U8", "[1]", "[1,0]"), 1), "offset"),
        ("offsets_do_not_match_shape", file(&tensor("U8", "[2]", "[0,1]"), 1), "offset"),
        ("hole_at_start", file(&tensor("U8", "[1]", "[1,2]"), 2), "offset"),
        ("data_missing", file(&tensor("U8", "[1]", "[0,1]"), 0), "offset"),
        ("data_left_over", file(&tensor("U8", "[1]", "[0,1]"), 2), "offset"),
        (
            "offset_max",
            file(&tensor("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1),
            "offset",
        ),
        ("same_bytes_twice", file(&format!(r#"{{"a":{good},"b":{good}}}"#), 1), "offset"),
        ("half_a_byte", file(&tensor("F4", "[1]", "[0,0]"), 0), "offset"),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(code(bytes), Err(expected), "{name}");
    }
}

#[test]
fn every_prefix_is_refused() {
    let whole = file(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8);
    for len in 0..whole.len() {
        code(whole[..len].to_vec()).unwrap_err();
    }
}
