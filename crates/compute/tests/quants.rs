//! Codecs against the bytes and values that the `gguf` Python package made (golden/quants).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking and read golden files

use std::path::Path;

use planish_base::TypeId;
use planish_compute::Isa;
use planish_compute::quant::QUANTS;

fn golden(name: &str, part: &str) -> Option<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/quants");
    std::fs::read(dir.join(format!("{name}.{part}.bin"))).ok()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn paths() -> impl Iterator<Item = Isa> {
    Isa::available()
}

#[test]
fn decoding_is_exact() {
    for quant in QUANTS.iter().filter(|q| q.id != TypeId::F32) {
        let name = quant.id.name();
        let raw = golden(&name, "raw").unwrap_or_else(|| panic!("golden/quants has no {name}"));
        let want = floats(&golden(&name, "values").unwrap());
        for isa in paths() {
            let mut got = vec![0f32; want.len()];
            (quant.decode)(isa, &raw, &mut got);
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let same = g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan());
                assert!(same, "{name} on {}: element {i} is {g}, want {w}", isa.name());
            }
            // Ranges that begin and end inside a block give the same elements.
            for (start, len) in [(0, 5), (3, 40), (31, 300), (200, 119)] {
                let mut part = vec![0f32; len];
                quant.decode_range(isa, &raw, start, &mut part);
                assert!(part.iter().zip(&got[start..]).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
            }
        }
    }
}

#[test]
fn encoding_is_exact() {
    let mut encoders = 0;
    for quant in QUANTS.iter().filter(|q| q.id != TypeId::F32) {
        let (name, Some(encode)) = (quant.id.name(), quant.encode) else { continue };
        let inputs =
            floats(&golden(&name, "inputs").unwrap_or_else(|| panic!("golden/quants has no {name}")));
        let want = golden(&name, "encoded").unwrap();
        let mut got = vec![0u8; want.len()];
        encode(&inputs, &mut got);
        assert!(
            got == want,
            "{name}: first difference at byte {:?}",
            got.iter().zip(&want).position(|(a, b)| a != b)
        );
        encoders += 1;
    }
    assert_eq!(encoders, 3);
}
