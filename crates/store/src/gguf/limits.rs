//! What a file may ask for. Each limit is far above any real model and exists to bound memory and work.

/// Metadata entries. Real files have fewer than 200.
pub const MAX_KEYS: u64 = 1 << 16;

/// Tensors. Real files have a few thousand at most; at this number the directory in memory stays within twice the
/// header's size plus 16 MiB.
pub const MAX_TENSORS: u64 = 1 << 17;

/// Bytes of a key: what the format's description allows.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Bytes of a tensor name: what the format's description allows. llama.cpp takes one less.
pub const MAX_NAME_BYTES: u64 = 64;

/// Bytes of one string value. A tokenizer embedded as JSON reaches 17 MB.
pub const MAX_STRING_BYTES: u64 = 64 << 20;

/// Elements of a string array. The largest vocabularies have 262,144 and merges about as many. Arrays of numbers need
/// no limit of their own, since they are never copied whole.
pub const MAX_STRINGS: u64 = 1 << 24;

/// Bytes of the header, metadata and tensor descriptors together.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;

/// Where tensor data begins, unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The smallest alignment: what 64-bit values need.
pub const MIN_ALIGNMENT: u64 = 8;

/// The largest alignment.
pub const MAX_ALIGNMENT: u64 = 65_536;
