//! The calls of passes: what each reads and writes, and its formula; those of optimizers follow from `update.rs`.

use super::{Activation, Along, Direction, Heads, Product, RopeStyle, Store, Views};
use crate::view::View;

with_updates! {
    /// `out[i] = table[ids[i]]`.
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
    /// `dtable[ids[i]] += dy[i]`, tokens in order.
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
    /// `out[i] = x[rows[i]]`.
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
    /// `dx[rows[i]] = dy[i]`, all other rows 0.
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
    /// `loss[i] = logsumexp(logits[i]) - logits[i][target[i]]`; the logits become their own gradient,
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
    /// x += uniform noise of +-alpha / sqrt(rows of the segment * width), a function of the key (Jain et al., 2023).
    Noise {
        reads {
            /// As in [`Dropout`].
            key: View,
            /// As in [`Attend`].
            segments: View,
        }
        writes {
            /// [n, width], in place.
            x: View,
        }
        consts {
            /// Its strength.
            alpha: f32,
        }
    }
    /// `norms[i]` = the norm of row i of w + scale * b a (Liu et al., 2024).
    RowNorms {
        reads {
            /// [out, in], any type.
            w: View,
            /// [rank, in].
            a: View,
            /// [out, rank].
            b: View,
        }
        writes {
            /// [1, out].
            norms: View,
        }
        consts {
            /// Factor on the product.
            scale: f32,
        }
    }
    /// y = x * (magnitude / norms) + bias, column by column; a quotient with a norm of 0 is 0.
    Rescale {
        reads {
            /// [n, out].
            x: View,
            /// [1, out].
            magnitude: View,
            /// [1, out].
            norms: View,
            /// [1, out].
            bias: Option<View>,
        }
        writes {
            /// Like x.
            y: View,
        }
        consts {}
    }
    /// The gradient of [`Rescale`] for the magnitude: dm += (sum over rows of dy * x, in order) / norms.
    MagnitudeBack {
        reads {
            /// Like x.
            dy: View,
            /// [n, out].
            x: View,
            /// [1, out].
            norms: View,
        }
        writes {
            /// [1, out], added to.
            dmagnitude: View,
        }
        consts {}
    }
    /// `out[i]` = sum of the squares of block i of x, in double precision; blocks of [`super::SUM_BLOCK`] elements.
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
