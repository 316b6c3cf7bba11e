//! Random bytes and random mutations of valid files: any result, no panic; and what opens keeps its promises.
#![allow(clippy::unwrap_used)]

use planish_store::gguf::{Gguf, Value};
use planish_store::safetensors::SafeTensors;
use planish_store::{Bytes, fs};
use planish_testkit::gguf_bytes::{File, small};
use proptest::prelude::*;

/// Opens `bytes` and, when that works, uses everything that a valid file promises.
fn exercise(bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    let Ok(g) = Gguf::from_bytes(Bytes::from_vec(bytes)) else { return };
    for (key, value) in g.metadata().iter() {
        assert!(g.metadata().contains(key));
        if let Value::Array(a) = value {
            assert_eq!(a.iter().count(), a.len());
            let m = g.metadata();
            let (_, _, _, _) =
                (m.strings(key).is_ok(), m.f32s(key).is_ok(), m.i32s(key).is_ok(), m.bools(key).is_ok());
        }
    }
    let mut end = g.data_start();
    let mut ranges: Vec<_> = g.tensors().iter().map(|t| (t.offset, t.bytes)).collect();
    ranges.sort_unstable();
    for (offset, bytes) in ranges {
        assert!(offset >= end && bytes > 0 && offset + bytes <= len && offset.is_multiple_of(g.alignment()));
        end = offset + bytes;
    }
    for t in g.tensors() {
        assert_eq!(g.data(t).len() as u64, t.bytes);
        assert_eq!(g.tensor(&t.name), Some(t));
    }
}

fn safetensors(bytes: Vec<u8>) {
    let Ok(s) = SafeTensors::from_bytes(Bytes::from_vec(bytes)) else { return };
    for name in s.names() {
        let t = s.get(name).unwrap();
        assert_eq!(t.shape.iter().product::<usize>() * t.dtype.bitsize(), t.data.len() * 8);
    }
}

/// Values that sit at the edges of checks.
fn interesting() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(u64::from(u32::MAX)),
        0u64..64,
        any::<u64>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        exercise(bytes.clone());
        safetensors(bytes);
    }

    #[test]
    fn random_bytes_after_a_good_start(version in 1u32..=3, n_tensors in 0u64..3, n_kv in 0u64..3,
                                       bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let f = File::new().version(version);
        exercise(f.set(|f| (f.n_tensors, f.n_kv, f.trailing) = (Some(n_tensors), Some(n_kv), bytes)).bytes());
    }

    #[test]
    fn flipped_bytes(version in 1u32..=3, flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = small(version).bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(bytes);
    }

    #[test]
    fn overwritten_words(version in 1u32..=3, at in any::<prop::sample::Index>(), word in interesting(), width in 1usize..=8) {
        let mut bytes = small(version).bytes();
        let header = small(version).header().len();
        let at = at.index(header - 8);
        bytes[at..at + width].copy_from_slice(&word.to_le_bytes()[..width]);
        exercise(bytes);
    }

    #[test]
    fn removed_or_repeated_pieces(version in 1u32..=3, from in any::<prop::sample::Index>(), len in 0usize..80, repeat: bool) {
        let bytes = small(version).bytes();
        let from = from.index(bytes.len());
        let to = (from + len).min(bytes.len());
        let rest = if repeat { &bytes[from..] } else { &bytes[to..] };
        exercise([&bytes[..to.min(if repeat { to } else { from })], rest].concat());
    }

    #[test]
    fn mutated_safetensors(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let header = br#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([0; 9]);
        safetensors(bytes.clone());
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        safetensors(bytes);
    }

    #[test]
    fn lines_agree_with_the_standard_library(text in "[ab\r\n\u{e9}]{0,40}") {
        let mut lines = fs::Lines::new(text.as_bytes(), "text".to_string(), 100);
        let mut got = Vec::new();
        while let Some((number, line)) = lines.next_line().unwrap() {
            got.push((number, line.to_string()));
        }
        let expected: Vec<_> = text.lines().enumerate().map(|(i, l)| (i as u64 + 1, l.to_string())).collect();
        prop_assert_eq!(got, expected);
    }
}
