//! Opens the real files of the shared model directory, where there is one.

use std::path::PathBuf;

use planish_store::gguf::Gguf;

#[allow(clippy::disallowed_methods, reason = "where the models lie is the environment of the test run")]
fn stories() -> Option<PathBuf> {
    let shared = std::env::var_os("PLANISH_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let dir = shared.join("models/stories260K");
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("SKIPPED: no {} (set PLANISH_SHARED)", dir.display());
    None
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
