//! GGUF files byte by byte, valid ones and malformed ones.
//!
//! A [`File`] is valid until a test says otherwise: counts, lengths, offsets and padding follow from what was added,
//! and each has an override, so that a malformed file is a valid one and the few lines that say what is wrong with it.

use planish_base::TypeId;

/// Value type numbers of the format.
#[expect(missing_docs, reason = "the names say it")]
pub mod ty {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// A file under construction.
#[derive(Clone, Debug)]
pub struct File {
    /// The first four bytes.
    pub magic: [u8; 4],
    /// The version; 1 makes counts, lengths and dimensions 32 bits wide.
    pub version: u32,
    /// What data offsets are padded to. It is not written as metadata by itself.
    pub alignment: usize,
    /// Declared instead of the true number of tensors.
    pub n_tensors: Option<u64>,
    /// Declared instead of the true number of entries.
    pub n_kv: Option<u64>,
    /// Whether the last tensor is followed by padding.
    pub final_padding: bool,
    /// Bytes after everything.
    pub trailing: Vec<u8>,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

/// A tensor descriptor and its data.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// Declared instead of the name's length.
    pub name_len: Option<u64>,
    /// Declared instead of the number of dimensions.
    pub n_dims: Option<u32>,
    /// Dimensions, fastest-varying first.
    pub dims: Vec<u64>,
    /// The type number.
    pub ty: u32,
    /// Declared instead of the running sum of padded sizes.
    pub offset: Option<u64>,
    /// The data in the file.
    pub data: Vec<u8>,
}

impl Tensor {
    /// A descriptor with as much data (bytes 0, 1, 2, ...) as its type and dimensions ask for, or with none when that
    /// is not a size that a test can hold.
    pub fn new(name: &str, dims: &[u64], ty: TypeId) -> Tensor {
        let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| ty.layout()?.size_of(n)).filter(|n| *n < 1 << 24).unwrap_or(0);
        Tensor {
            name: name.as_bytes().to_vec(),
            name_len: None,
            n_dims: None,
            dims: dims.to_vec(),
            ty: ty.0,
            offset: None,
            data: (0..bytes).map(|i| i as u8).collect(),
        }
    }
}

impl Default for File {
    fn default() -> Self {
        File::new()
    }
}

impl File {
    /// Version 3 without entries and tensors.
    pub fn new() -> File {
        File {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            n_tensors: None,
            n_kv: None,
            final_padding: true,
            trailing: Vec::new(),
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Another version.
    pub fn version(mut self, version: u32) -> File {
        self.version = version;
        self
    }

    /// An entry of a key, a type number and the value's bytes.
    pub fn kv(mut self, key: &str, ty: u32, value: &[u8]) -> File {
        let mut entry = self.string(key.as_bytes());
        entry.extend(ty.to_le_bytes());
        entry.extend(value);
        self.entries.push(entry);
        self
    }

    /// A `u32` entry.
    pub fn kv_u32(self, key: &str, value: u32) -> File {
        self.kv(key, ty::U32, &value.to_le_bytes())
    }

    /// A string entry.
    pub fn kv_str(self, key: &str, value: &str) -> File {
        let value = self.string(value.as_bytes());
        self.kv(key, ty::STRING, &value)
    }

    /// An array entry: element type, declared length, the elements' bytes.
    pub fn kv_array(self, key: &str, element: u32, count: u64, elements: &[u8]) -> File {
        let mut value = element.to_le_bytes().to_vec();
        value.extend(self.count(count));
        value.extend(elements);
        self.kv(key, ty::ARRAY, &value)
    }

    /// An array of strings.
    pub fn kv_strings(self, key: &str, values: &[&str]) -> File {
        let elements: Vec<u8> = values.iter().flat_map(|v| self.string(v.as_bytes())).collect();
        self.kv_array(key, ty::STRING, values.len() as u64, &elements)
    }

    /// Bytes that stand where an entry would, counted as one.
    pub fn kv_raw(mut self, bytes: &[u8]) -> File {
        self.entries.push(bytes.to_vec());
        self
    }

    /// A tensor.
    pub fn tensor(mut self, tensor: Tensor) -> File {
        self.tensors.push(tensor);
        self
    }

    /// A valid tensor.
    pub fn with(self, name: &str, dims: &[u64], ty: TypeId) -> File {
        self.tensor(Tensor::new(name, dims, ty))
    }

    /// Applies a change, for overrides within a chain.
    pub fn set(mut self, change: impl FnOnce(&mut File)) -> File {
        change(&mut self);
        self
    }

    /// A count or length in the width of the version.
    pub fn count(&self, n: u64) -> Vec<u8> {
        if self.version == 1 { (n as u32).to_le_bytes().to_vec() } else { n.to_le_bytes().to_vec() }
    }

    /// A string with its length before it.
    pub fn string(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = self.count(bytes.len() as u64);
        out.extend(bytes);
        out
    }

    /// The file up to the end of the descriptors.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.count(self.n_tensors.unwrap_or(self.tensors.len() as u64)));
        out.extend(self.count(self.n_kv.unwrap_or(self.entries.len() as u64)));
        out.extend(self.entries.concat());
        let mut offset = 0u64;
        for t in &self.tensors {
            out.extend(self.count(t.name_len.unwrap_or(t.name.len() as u64)));
            out.extend(&t.name);
            out.extend(t.n_dims.unwrap_or(t.dims.len() as u32).to_le_bytes());
            for d in &t.dims {
                out.extend(self.count(*d));
            }
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.unwrap_or(offset).to_le_bytes());
            offset += t.data.len().next_multiple_of(self.alignment) as u64;
        }
        out
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&t.data);
        }
        if self.final_padding && !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend(&self.trailing);
        out
    }
}

/// A small valid file: every value type, an array of each kind, three tensors of which one is quantised.
pub fn small(version: u32) -> File {
    let f = File::new().version(version);
    f.kv_str("general.architecture", "llama")
        .kv_u32("llama.block_count", 2)
        .kv("a.u8", ty::U8, &[200])
        .kv("a.i8", ty::I8, &[0xff])
        .kv("a.u16", ty::U16, &[1, 2])
        .kv("a.i16", ty::I16, &[0xfe, 0xff])
        .kv("a.i32", ty::I32, &(-5i32).to_le_bytes())
        .kv("a.f32", ty::F32, &1.5f32.to_le_bytes())
        .kv("a.bool", ty::BOOL, &[1])
        .kv("a.u64", ty::U64, &u64::MAX.to_le_bytes())
        .kv("a.i64", ty::I64, &i64::MIN.to_le_bytes())
        .kv("a.f64", ty::F64, &0.25f64.to_le_bytes())
        .kv_strings("tokenizer.ggml.tokens", &["a", "", "\u{2581}bc"])
        .kv_array("tokenizer.ggml.token_type", ty::I32, 3, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])
        .kv_array("scores", ty::F32, 1, &2.5f32.to_le_bytes())
        .kv_array("pattern", ty::BOOL, 2, &[0, 1])
        .kv_array("empty", ty::STRING, 0, &[])
        .with("token_embd.weight", &[5, 3], TypeId::F32)
        .with("blk.0.attn_q.weight", &[64, 2], TypeId::Q8_0)
        .with("output_norm.weight", &[5], TypeId::F32)
}
