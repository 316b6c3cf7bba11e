use std::collections::BTreeMap;

use planish_store::safetensors::{self, Dtype};
use planish_testkit::gguf_bytes;

use crate::common::{Place, Tiny};
use crate::snapshot;

#[test]
fn a_small_file_as_text_and_json() {
    let place = Place::new();
    place.write("small.gguf", gguf_bytes::small(3).bytes());
    snapshot!("inspect", place.run(&["inspect", "@small.gguf"]).all());
    snapshot!("inspect_json", place.run(&["inspect", "@small.gguf", "--json"]).all());
    // No codec has been asked to decode anything so far.
    snapshot!("inspect_unknown", place.run(&["inspect", "@small.gguf", "--tensor", "nope"]).all());
}

#[test]
fn a_safetensors_file_as_text() {
    let place = Place::new();
    let f32s: Vec<u8> = [1.0f32, -2.0, 0.0, f32::NAN].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors =
        [("w".to_owned(), Dtype::F32, vec![2, 2], f32s), ("ids".to_owned(), Dtype::I64, vec![1], vec![0; 8])];
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::write(&place.path("x.safetensors"), &tensors, &metadata).unwrap();
    snapshot!("inspect_safetensors", place.run(&["inspect", "@x.safetensors"]).all());
    snapshot!("inspect_tensor", place.run(&["inspect", "@x.safetensors", "--tensor", "w"]).all());
    let stats = &place.run(&["inspect", "@x.safetensors", "--tensor", "w", "--json"]).json()[0]["tensor"];
    assert_eq!((&stats["min"], &stats["max"]), (&(-2.0).into(), &1.0.into()));
    assert_eq!((&stats["zeros"], &stats["non_finite"]), (&1.into(), &1.into()));
    assert_eq!(place.run(&["inspect", "@x.safetensors", "--tensor", "ids"]).code, Some(3));
}

#[test]
fn every_tensor_of_a_model_has_statistics() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let listing = &place.run(&["inspect", "@tiny.gguf", "--json"]).json()[0];
    assert_eq!(listing["metadata"]["tokenizer.ggml.tokens"]["length"], 300);
    let norm = ["inspect", "@tiny.gguf", "--json", "--tensor", "output_norm.weight"];
    let norm = &place.run(&norm).json()[0]["tensor"];
    assert_eq!((&norm["mean"], &norm["std"]), (&1.0.into(), &0.0.into()));
}
