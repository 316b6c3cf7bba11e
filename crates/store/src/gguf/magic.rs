//! What a file that is not GGUF probably is.

/// A hint for a file whose first four bytes are not the magic.
pub(crate) fn guess(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"FUGG", "the magic is byte-swapped: a big-endian file"),
        (
            b"PK\x03\x04",
            "this is a zip archive, perhaps a PyTorch checkpoint; use its safetensors or GGUF version",
        ),
        (b"\x80\x02", PICKLE),
        (b"\x80\x04", PICKLE),
        (b"lmgg", OLD_GGML),
        (b"fmgg", OLD_GGML),
        (b"tjgg", OLD_GGML),
        (b"algg", "this is an old ggml LoRA adapter (ggla); convert it to GGUF with llama.cpp's scripts"),
        (b"version https://git-lfs", "this is a Git LFS pointer, not the file itself; run `git lfs pull`"),
        (b"<!DOCTYPE", WEB_PAGE),
        (b"<!doctype", WEB_PAGE),
        (b"<html", WEB_PAGE),
        (b"\x1f\x8b", "this is a gzip file; decompress it first"),
        (b"\x28\xb5\x2f\xfd", "this is a zstd file; decompress it first"),
        (b"\x89HDF", "this is an HDF5 file"),
        (b"{", "this looks like JSON"),
    ];
    if looks_like_safetensors(bytes) {
        return Some("this looks like safetensors; give the directory that holds it and its config.json");
    }
    KNOWN.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, hint)| *hint)
}

const PICKLE: &str = "this looks like a PyTorch pickle; use its safetensors or GGUF version";
const OLD_GGML: &str = "this is an old ggml file (before GGUF); convert it with llama.cpp's scripts";
const WEB_PAGE: &str = "this is a web page: the download did not deliver the file";

/// A 64-bit length that fits the file, then a JSON object.
fn looks_like_safetensors(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return false };
    rest.starts_with(b"{") && u64::from_le_bytes(*len) <= rest.len() as u64
}
