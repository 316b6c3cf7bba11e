//! Opens the real files of the shared model directory, where there is one.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use planish_store::fs;
use planish_store::gguf::{Gguf, Writer};
use planish_store::safetensors::SafeTensors;

fn stories() -> Option<PathBuf> {
    planish_testkit::files::needed("PLANISH_SHARED", "models/stories260K")
}

#[test]
fn versions_1_and_3_of_the_same_model_agree() {
    let Some(dir) = stories() else { return };
    let v1 = Gguf::open(&dir.join("tinyllamas-stories-260k-f32.gguf")).unwrap();
    let v3 = Gguf::open(&dir.join("stories260K-f32.v3.gguf")).unwrap();
    assert_eq!((v1.version(), v3.version()), (1, 3));
    for key in ["llama.context_length", "llama.embedding_length", "llama.block_count"] {
        assert_eq!(v1.metadata().require_u32(key).unwrap(), v3.metadata().require_u32(key).unwrap());
    }
    for tokens in [v1.metadata(), v3.metadata()] {
        assert_eq!(tokens.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 512);
    }
    assert!(v1.is_packed() && v3.is_packed());
    let v1_embedding = v1.tensor("token_embd.weight").unwrap();
    let v3_embedding = v3.tensor("token_embd.weight").unwrap();
    assert_eq!(v1_embedding.dims, v3_embedding.dims);
    assert_eq!(v1.data(v1_embedding), v3.data(v3_embedding));
}

#[test]
fn real_files_rewrite_byte_for_byte() {
    let Some(dir) = stories() else { return };
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("out.gguf");
    for name in ["stories260K-f32.v3.gguf", "stories260K-f16.v3.gguf", "tinyllamas-stories-260k-f32.gguf"] {
        let from = Gguf::open(&dir.join(name)).unwrap();
        let mut w = Writer::new();
        w.copy_metadata(from.metadata(), |_| true);
        for t in from.tensors() {
            w.tensor(&t.name, &t.dims, t.ty).unwrap();
        }
        w.write(&path, |i, out| out.write_all(from.data(&from.tensors()[i])).map_err(fs::write_failed))
            .unwrap();
        let to = Gguf::open(&path).unwrap();
        if from.version() == 3 {
            assert_eq!(to.bytes()[..], from.bytes()[..], "{name}");
        }
        assert!(from.metadata().iter().map(|(k, _)| k).eq(to.metadata().iter().map(|(k, _)| k)));
        for t in from.tensors() {
            assert_eq!(to.data(to.tensor(&t.name).unwrap()), from.data(t));
        }
    }
}

#[test]
fn the_safetensors_file_opens() {
    let Some(dir) = stories() else { return };
    let s = SafeTensors::open(&dir.join("hf/model.safetensors")).unwrap();
    let embedding = s.get("model.embed_tokens.weight").unwrap();
    assert_eq!(embedding.shape, [512, 64]);
}
