//! Every operation a backend can execute, as plain data.
//!
//! What changes from step to step (ids, positions, lengths, learning rate, random keys, the loss normaliser) is in
//! buffers; a constant here follows from shapes and settings alone. `accumulate` says whether a result is added to
//! what the output holds or replaces it.

use crate::view::View;

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
    /// A dot product a row over the stored bytes: decoding.
    Dot,
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

calls! {
    /// out[i] = table[ids[i]].
    Embed {
        reads {
            /// [n, 1] ids.
            ids: View,
            /// [vocabulary, width], any type.
            table: View,
        }
        writes {
            /// [n, width].
            out: View,
        }
        consts {}
    }
    /// dtable[ids[i]] += dy[i], tokens in order.
    EmbedBack {
        reads {
            /// [n, 1] ids.
            ids: View,
            /// [n, width].
            dy: View,
        }
        writes {
            /// [vocabulary, width], added to.
            dtable: View,
        }
        consts {}
    }
    /// Root mean square norm of groups of `width` columns: y = x * rstd * weight,
    /// rstd = 1 / sqrt(mean(x^2) + eps) (Zhang and Sennrich, 2019).
    RmsNorm {
        reads {
            /// [n, groups * width].
            x: View,
            /// [1, width].
            weight: Option<View>,
        }
        writes {
            /// Like x.
            y: View,
            /// [n, groups], kept for the backward pass.
            rstd: Option<View>,
        }
        consts {
            /// Added to the mean square.
            eps: f32,
            /// Columns normalised together.
            width: usize,
        }
    }
    /// The gradient of [`RmsNorm`] with respect to its input:
    /// dx = rstd * (w*dy - xhat * mean(w*dy * xhat)), xhat = x * rstd.
    RmsNormBack {
        reads {
            /// Like x.
            dy: View,
            /// [n, groups * width].
            x: View,
            /// [1, width].
            weight: Option<View>,
            /// [n, groups].
            rstd: View,
        }
        writes {
            /// Like x.
            dx: View,
        }
        consts {
            /// Columns normalised together.
            width: usize,
            /// Replace or add to dx.
            store: Store,
        }
    }
    /// The gradient of [`RmsNorm`] with respect to its weight: dw += sum over rows and groups of dy * x * rstd,
    /// rows in order.
    RmsNormWeightBack {
        reads {
            /// Like x.
            dy: View,
            /// [n, groups * width].
            x: View,
            /// [n, groups].
            rstd: View,
        }
        writes {
            /// [1, width], added to.
            dweight: View,
        }
        consts {
            /// Columns normalised together.
            width: usize,
        }
    }
    /// c (+)= scale * a b', with a as [m, k], b as [n, k], c [m, n].
    MatMul {
        reads {
            /// [m, k], or [k, m] along the outer index.
            a: View,
            /// [n, k], or [k, n] along the outer index; any type.
            b: View,
        }
        writes {
            /// [m, n].
            c: View,
        }
        consts {
            /// How a is stored.
            a_along: Along,
            /// How b is stored.
            b_along: Along,
            /// Factor on the product.
            scale: f32,
            /// Replace or add to c.
            store: Store,
            /// The arithmetic.
            product: Product,
        }
    }
    /// Every row of out = row.
    Broadcast {
        reads {
            /// [1, cols].
            row: View,
        }
        writes {
            /// [n, cols].
            out: View,
        }
        consts {}
    }
    /// out += sum of the rows of x, in order.
    ColumnSum {
        reads {
            /// [n, cols].
            x: View,
        }
        writes {
            /// [1, cols], added to.
            out: View,
        }
        consts {}
    }
    /// Rotates pairs of each head by position * frequency, in place (Su et al., 2021).
    Rope {
        reads {
            /// [n, 1] positions.
            positions: View,
            /// [positions, width]: cos and sin of each pair, interleaved.
            table: View,
        }
        writes {
            /// [n, heads * width], in place.
            x: View,
        }
        consts {
            /// Width of a head; the table covers the whole of it.
            width: usize,
            /// Which elements are a pair.
            style: RopeStyle,
            /// Backward rotates by the negative angle.
            direction: Direction,
        }
    }
    /// Causal attention inside each segment, over the keys of the batch itself, with a streaming softmax
    /// (Rabe and Staats, 2021; Dao et al., 2022).
    Attend {
        reads {
            /// [n, query heads * width].
            q: View,
            /// [n, kv heads * width].
            k: View,
            /// Like k.
            v: View,
            /// [segments, 4]: first row, rows, first position, KV slot.
            segments: View,
        }
        writes {
            /// Like q.
            out: View,
            /// [n, query heads]: log-sum-exp of the scores, kept for the backward pass.
            lse: View,
        }
        consts {
            /// Shape of the heads.
            heads: Heads,
        }
    }
    /// Gradients of [`Attend`] with respect to q, k and v. With P = exp(S - lse), D = rowsum(dout * out):
    /// dv = P' dout, dS = P * (dout v' - D), dq = scale dS k, dk = scale dS' q.
    AttendBack {
        reads {
            /// As in the forward call.
            q: View,
            /// As in the forward call.
            k: View,
            /// As in the forward call.
            v: View,
            /// As in the forward call.
            segments: View,
            /// As in the forward call.
            out: View,
            /// As in the forward call.
            lse: View,
            /// Like out.
            dout: View,
        }
        writes {
            /// Like q, replaced.
            dq: View,
            /// Like k, replaced.
            dk: View,
            /// Like v, replaced.
            dv: View,
            /// [n, query heads]: D.
            delta: View,
        }
        consts {
            /// Shape of the heads.
            heads: Heads,
        }
    }
    /// Appends keys and values of new tokens to the KV blocks of their segment's slot.
    KvAppend {
        reads {
            /// [n, kv heads * width].
            k: View,
            /// Like k.
            v: View,
            /// [segments, 4]: first row, rows, first position, KV slot.
            segments: View,
            /// [slots, blocks]: the block that holds positions 64 i .. of a slot.
            table: View,
        }
        writes {
            /// [blocks * kv heads * width, 64]: keys, transposed inside a block.
            k_blocks: View,
            /// [blocks * kv heads * 64, width]: values.
            v_blocks: View,
        }
        consts {
            /// Shape of the heads.
            heads: Heads,
        }
    }
    /// Causal attention of new tokens over all positions of their slot's KV blocks.
    AttendBlocks {
        reads {
            /// [n, query heads * width].
            q: View,
            /// [segments, 4]: first row, rows, first position, KV slot.
            segments: View,
            /// As in [`KvAppend`].
            table: View,
            /// As in [`KvAppend`].
            k_blocks: View,
            /// As in [`KvAppend`].
            v_blocks: View,
        }
        writes {
            /// Like q.
            out: View,
        }
        consts {
            /// Shape of the heads.
            heads: Heads,
        }
    }
    /// y = act(gate) * up (Shazeer, 2020).
    Gated {
        reads {
            /// [n, width].
            gate: View,
            /// Like gate.
            up: View,
        }
        writes {
            /// Like gate.
            y: View,
        }
        consts {
            /// The activation.
            act: Activation,
        }
    }
    /// Gradients of [`Gated`]: dgate = dy * up * act'(gate), dup = dy * act(gate).
    GatedBack {
        reads {
            /// Like gate.
            dy: View,
            /// [n, width].
            gate: View,
            /// Like gate.
            up: View,
        }
        writes {
            /// Like gate, replaced.
            dgate: View,
            /// Like gate, replaced.
            dup: View,
        }
        consts {
            /// The activation.
            act: Activation,
        }
    }
    /// y = a + scale * b.
    Add {
        reads {
            /// [n, width].
            a: View,
            /// Like a.
            b: View,
        }
        writes {
            /// Like a; may be a itself.
            y: View,
        }
        consts {
            /// Factor on b.
            scale: f32,
        }
    }
    /// out[i] = x[rows[i]].
    Gather {
        reads {
            /// [n, width].
            x: View,
            /// [m, 1] row numbers, ascending, no duplicates.
            rows: View,
        }
        writes {
            /// [m, width].
            out: View,
        }
        consts {}
    }
    /// dx[rows[i]] = dy[i], all other rows 0.
    Scatter {
        reads {
            /// [m, width].
            dy: View,
            /// [m, 1] row numbers, ascending, no duplicates.
            rows: View,
        }
        writes {
            /// [n, width], replaced.
            dx: View,
        }
        consts {}
    }
    /// loss[i] = logsumexp(logits[i]) - logits[i][target[i]]; the logits become their own gradient,
    /// (softmax - onehot) * normaliser.
    CrossEntropy {
        reads {
            /// [m, 1] target ids.
            targets: View,
            /// [1, 1]: 1 / trained tokens of the whole optimizer step.
            normaliser: View,
        }
        writes {
            /// [m, vocabulary], overwritten with their gradient.
            logits: View,
            /// [m, 1]: the loss of each row, not normalised.
            loss: View,
        }
        consts {}
    }
    /// The k most probable columns of each row of logits, most probable first, ties to the lower id.
    TopK {
        reads {
            /// [m, vocabulary].
            logits: View,
        }
        writes {
            /// [m, k] ids.
            ids: View,
            /// [m, k] log-probabilities.
            logprobs: View,
        }
        consts {}
    }
    /// y = x with each element dropped with probability `p` and the others divided by 1 - p; the mask follows from
    /// the key alone, so the backward pass is the same call.
    Dropout {
        reads {
            /// [n, width].
            x: View,
            /// [1, 4] words: seed low, seed high, step, micro-batch.
            key: View,
        }
        writes {
            /// Like x.
            y: View,
        }
        consts {
            /// Probability of dropping.
            p: f32,
            /// Which dropout of the model this is; two never share a mask.
            stream: u32,
        }
    }
    /// One AdamW step (Loshchilov and Hutter, 2019) on f32 masters, in place:
    /// m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p = p (1 - lr wd) - lr m/c1 / (sqrt(v/c2) + eps), g taken times
    /// the clip factor.
    AdamW {
        reads {
            /// [1, n].
            grad: View,
            /// [1, 9]: lr, b1, 1 - b1, b2, 1 - b2, eps, c1 = 1 - b1^t, c2 = 1 - b2^t, clip factor; differences
            /// are taken in double precision.
            hyper: View,
        }
        writes {
            /// [1, n].
            param: View,
            /// [1, n].
            m: View,
            /// [1, n].
            v: View,
        }
        consts {
            /// Decoupled weight decay of this tensor.
            weight_decay: f32,
        }
    }
    /// out[i] = sum of the squares of block i of x, in double precision; blocks of [`SUM_BLOCK`] elements.
    SumSquares {
        reads {
            /// [1, n].
            x: View,
        }
        writes {
            /// [1, blocks] F64.
            out: View,
        }
        consts {}
    }
    /// x = 0.
    Zero {
        reads {}
        writes {
            /// Any shape.
            x: View,
        }
        consts {}
    }
}

/// Elements a partial sum of [`SumSquares`] covers.
pub const SUM_BLOCK: usize = 4096;
