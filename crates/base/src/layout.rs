//! The block layout of every ggml tensor type, by its number in the file.
//!
//! Knowing a size is not knowing how to decode: codecs live in planish-compute.

/// A ggml tensor type number as it stands in a GGUF file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TypeId(pub u32);

/// How many elements a block holds, and in how many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeLayout {
    /// The number in the file.
    pub id: TypeId,
    /// The name that ggml prints, lower case.
    pub name: &'static str,
    /// Elements a block.
    pub block: u64,
    /// Bytes a block.
    pub bytes: u64,
}

impl TypeId {
    /// 32-bit float.
    pub const F32: TypeId = TypeId(0);
    /// IEEE half.
    pub const F16: TypeId = TypeId(1);
    /// 4 bits, scale.
    pub const Q4_0: TypeId = TypeId(2);
    /// 4 bits, scale and minimum.
    pub const Q4_1: TypeId = TypeId(3);
    /// 5 bits, scale.
    pub const Q5_0: TypeId = TypeId(6);
    /// 5 bits, scale and minimum.
    pub const Q5_1: TypeId = TypeId(7);
    /// 8 bits, scale.
    pub const Q8_0: TypeId = TypeId(8);
    /// 2 bits in super-blocks of 256.
    pub const Q2_K: TypeId = TypeId(10);
    /// 3 bits in super-blocks of 256.
    pub const Q3_K: TypeId = TypeId(11);
    /// 4 bits in super-blocks of 256.
    pub const Q4_K: TypeId = TypeId(12);
    /// 5 bits in super-blocks of 256.
    pub const Q5_K: TypeId = TypeId(13);
    /// 6 bits in super-blocks of 256.
    pub const Q6_K: TypeId = TypeId(14);
    /// 4 bits that choose from uneven values, scale.
    pub const IQ4_NL: TypeId = TypeId(20);
    /// 4 bits that choose from uneven values, in super-blocks of 256.
    pub const IQ4_XS: TypeId = TypeId(23);
    /// 8-bit integer.
    pub const I8: TypeId = TypeId(24);
    /// 32-bit integer.
    pub const I32: TypeId = TypeId(26);
    /// 64-bit float.
    pub const F64: TypeId = TypeId(28);
    /// bfloat16.
    pub const BF16: TypeId = TypeId(30);

    /// The layout, or `None` for a number that ggml never had or has removed.
    pub fn layout(self) -> Option<&'static TypeLayout> {
        BY_NUMBER.get(self.0 as usize).copied().flatten()
    }

    /// The type with this ggml name, in any case.
    pub fn by_name(name: &str) -> Option<TypeId> {
        LAYOUTS.iter().find(|l| l.name.eq_ignore_ascii_case(name)).map(|l| l.id)
    }

    /// The ggml name, or `type N` for an unknown number.
    pub fn name(self) -> String {
        self.layout().map_or_else(|| format!("type {}", self.0), |l| l.name.to_string())
    }

    /// The name of a type that ggml once had and removed, for a better error.
    pub fn removed(self) -> Option<&'static str> {
        match self.0 {
            4 => Some("q4_2"),
            5 => Some("q4_3"),
            31..=33 => Some("q4_0_4_4, q4_0_4_8 or q4_0_8_8"),
            36..=38 => Some("iq4_nl_4_4, iq4_nl_4_8 or iq4_nl_8_8"),
            _ => None,
        }
    }
}

impl TypeLayout {
    /// Bytes of `elements` elements; `None` when they are not whole blocks or the size does not fit.
    pub fn size_of(&self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block) {
            return None;
        }
        (elements / self.block).checked_mul(self.bytes)
    }
}

const fn row(id: u32, name: &'static str, block: u64, bytes: u64) -> TypeLayout {
    TypeLayout { id: TypeId(id), name, block, bytes }
}

/// All types of ggml, in the order of their numbers.
pub static LAYOUTS: &[TypeLayout] = &[
    row(0, "f32", 1, 4),
    row(1, "f16", 1, 2),
    row(2, "q4_0", 32, 18),
    row(3, "q4_1", 32, 20),
    row(6, "q5_0", 32, 22),
    row(7, "q5_1", 32, 24),
    row(8, "q8_0", 32, 34),
    row(9, "q8_1", 32, 36),
    row(10, "q2_k", 256, 84),
    row(11, "q3_k", 256, 110),
    row(12, "q4_k", 256, 144),
    row(13, "q5_k", 256, 176),
    row(14, "q6_k", 256, 210),
    row(15, "q8_k", 256, 292),
    row(16, "iq2_xxs", 256, 66),
    row(17, "iq2_xs", 256, 74),
    row(18, "iq3_xxs", 256, 98),
    row(19, "iq1_s", 256, 50),
    row(20, "iq4_nl", 32, 18),
    row(21, "iq3_s", 256, 110),
    row(22, "iq2_s", 256, 82),
    row(23, "iq4_xs", 256, 136),
    row(24, "i8", 1, 1),
    row(25, "i16", 1, 2),
    row(26, "i32", 1, 4),
    row(27, "i64", 1, 8),
    row(28, "f64", 1, 8),
    row(29, "iq1_m", 256, 56),
    row(30, "bf16", 1, 2),
    row(34, "tq1_0", 256, 54),
    row(35, "tq2_0", 256, 66),
    row(39, "mxfp4", 32, 17),
];

/// The lines of [`LAYOUTS`] at their numbers: each operand of each call asks for its own.
static BY_NUMBER: [Option<&TypeLayout>; 64] = {
    let mut lines = [None; 64];
    let mut i = 0;
    while i < LAYOUTS.len() {
        lines[LAYOUTS[i].id.0 as usize] = Some(&LAYOUTS[i]);
        i += 1;
    }
    lines
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_ascending() {
        for pair in LAYOUTS.windows(2) {
            assert!(pair[0].id < pair[1].id);
        }
        for l in LAYOUTS {
            assert_eq!((TypeId::by_name(l.name), l.id.layout()), (Some(l.id), Some(l)));
        }
    }

    #[test]
    fn sizes_are_whole_blocks_or_nothing() {
        let q8_0 = TypeId::Q8_0.layout().unwrap();
        assert_eq!(q8_0.size_of(64), Some(68));
        assert_eq!(q8_0.size_of(33), None);
        assert_eq!(TypeId::F32.layout().unwrap().size_of(u64::MAX), None);
    }
}
