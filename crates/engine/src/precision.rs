//! The arithmetic of a model's matrix products.

use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_compute::call::Product;

/// What matrices are multiplied as. Sums, gradients, norms, scores, the residual stream and the optimizer are f32
/// always; adapters' thin products too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// Operands are rounded to bf16.
    Bf16,
    /// Operands are rounded to integers of 14 bits, with a scale for every 32: prompts only.
    Int16,
}

impl Precision {
    /// What a user may ask for; `auto` is bf16 where the machine multiplies it faster.
    pub const NAMES: [&str; 3] = ["auto", "f32", "bf16"];

    /// The precision that a name of [`Precision::NAMES`] means on a path.
    ///
    /// # Errors
    /// Kind `Usage` for another name.
    pub fn of(name: &str, isa: Isa) -> Result<Precision> {
        match name {
            "auto" if isa.multiplies_bf16() => Ok(Precision::Bf16),
            "auto" | "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            other => Err(Error::usage(
                "setting",
                format!("precision is {other}, expected {}", Precision::NAMES.join(", ")),
            )),
        }
    }

    /// The precision of prompts: `auto` is also [`Precision::Int16`] where the machine multiplies those faster than f32.
    ///
    /// # Errors
    /// As [`Precision::of`].
    pub fn of_prompts(name: &str, isa: Isa) -> Result<Precision> {
        match Precision::of(name, isa)? {
            Precision::F32 if name == "auto" && isa.multiplies_int16() => Ok(Precision::Int16),
            precision => Ok(precision),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int16 => "int16",
        }
    }

    /// The arithmetic of products that are not decoding.
    pub(crate) fn product(self) -> Product {
        match self {
            Precision::F32 => Product::Packed,
            Precision::Bf16 => Product::Bf16,
            Precision::Int16 => Product::Int16,
        }
    }
}
