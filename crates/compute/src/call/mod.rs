//! Every operation a backend can execute, as plain data.
//!
//! What changes from step to step (ids, positions, lengths, learning rate, random keys, the loss normaliser) is in
//! buffers; a constant here follows from shapes and settings alone. `accumulate` says whether a result is added to
//! what the output holds or replaces it.

/// Defines the call structs and the enum over them.
macro_rules! calls {
    ($( $(#[$doc:meta])* $name:ident {
        reads { $( $(#[$rd:meta])* $r:ident: $rt:ty, )* }
        writes { $( $(#[$wd:meta])* $w:ident: $wt:ty, )* }
        consts { $( $(#[$cd:meta])* $c:ident: $ct:ty, )* }
    } )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $( $(#[$rd])* pub $r: $rt, )*
                $( $(#[$wd])* pub $w: $wt, )*
                $( $(#[$cd])* pub $c: $ct, )*
            }

            impl From<$name> for Call {
                fn from(call: $name) -> Call {
                    Call::$name(call)
                }
            }
        )*

        /// One operation on views.
        #[derive(Clone, Copy, Debug)]
        #[allow(clippy::large_enum_variant)] // a list has a thousand calls; a box each would cost more
        pub enum Call {
            $( #[doc = concat!("See [`", stringify!($name), "`].")] $name($name), )*
        }

        /// The names of all calls, in the order of the table.
        pub static CALLS: &[&str] = &[$( stringify!($name), )*];

        impl Call {
            /// The call's name.
            pub fn name(&self) -> &'static str {
                match self { $( Call::$name(_) => stringify!($name), )* }
            }

            /// Every view the call reads, then every view it writes.
            pub fn visit(&self, reads: &mut dyn FnMut(&View), writes: &mut dyn FnMut(&View)) {
                match self { $( Call::$name(c) => {
                    $( c.$r.each(reads); )*
                    $( c.$w.each(writes); )*
                    let _ = (c, &reads, &writes);
                } )* }
            }

            /// Every view of the call, mutably.
            pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
                match self { $( Call::$name(c) => {
                    $( c.$r.each_mut(f); )*
                    $( c.$w.each_mut(f); )*
                } )* }
            }
        }
    };
}

#[macro_use]
mod update;
mod table;

use crate::view::View;

pub use table::*;

/// Whether a call adds to its output or replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The output is overwritten, its old content never read.
    Replace,
    /// The result is added to the output.
    Accumulate,
}

/// Which index of a matrix operand is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Stored as [outer, k]: a row holds consecutive k.
    K,
    /// Stored as [k, outer]: a row holds consecutive outer indices (the transposed operand).
    Outer,
}

/// The arithmetic of a matrix product. The pass chooses it, never the number of rows, so that a row's bits do not
/// depend on its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Packed tiles, one FMA chain over k for each block of k: training, prefill.
    Packed,
    /// As [`Product::Packed`] with both operands rounded to bf16 (to nearest, ties to even), and sums in f32. Where
    /// the machine multiplies bf16, subnormal operands count as 0.
    Bf16,
    /// As [`Product::Packed`] with both operands as integers from -8191 to 8191, a scale for every 32 k; both lie along k.
    /// Faster than f32 where the machine multiplies such integers (AVX512-VNNI): prefill.
    Int16,
    /// A dot product a row over the stored bytes: decoding. Where b is a block type, a is rounded to int8 first, as
    /// [`crate::int8::Int8Rows::round`] says.
    Dot,
}

impl MatMul {
    /// The length of the sums that a product is made of.
    pub fn k(&self) -> usize {
        if self.a_along == Along::K { self.a.cols } else { self.a.rows }
    }
}

/// How rotary pairs are laid out in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements 2i and 2i+1 (llama.cpp's NORM, GGUF llama files).
    Interleaved,
    /// Elements i and i + width/2 (NEOX, Hugging Face files).
    Halves,
}

/// The forward or the inverse (backward) of a rotation or mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As in the forward pass.
    Forward,
    /// The transposed map, as the backward pass needs it.
    Backward,
}

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016).
    Gelu,
}

impl Activation {
    /// All activations with their names in settings and files.
    pub const ALL: &[(&str, Activation)] = &[("silu", Activation::Silu), ("gelu", Activation::Gelu)];

    /// The activation of this name.
    pub fn named(name: &str) -> Option<Activation> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, act)| *act)
    }

    /// Its name in settings and files.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
        }
    }
}

/// The shape of attention heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Width of a head.
    pub width: usize,
    /// What scores are multiplied with before the softmax.
    pub scale: f32,
}

/// Positions in a KV block.
pub const KV_BLOCK: usize = 64;

/// The words of a segment table's row: see [`Attend::segments`].
pub const SEGMENT_WORDS: usize = 4;

/// Anything that holds views, so that calls can be walked.
pub trait Views {
    /// Calls `f` on every view.
    fn each(&self, f: &mut dyn FnMut(&View));
    /// Calls `f` on every view, mutably.
    fn each_mut(&mut self, f: &mut dyn FnMut(&mut View));
}

impl Views for View {
    fn each(&self, f: &mut dyn FnMut(&View)) {
        f(self);
    }
    fn each_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        f(self);
    }
}

impl Views for Option<View> {
    fn each(&self, f: &mut dyn FnMut(&View)) {
        self.iter().for_each(f);
    }
    fn each_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        self.iter_mut().for_each(f);
    }
}

/// Elements a partial sum of [`SumSquares`] covers.
pub const SUM_BLOCK: usize = 4096;

/// Elements with one scale in [`AdamW8`].
pub const CODE_BLOCK: usize = 256;
