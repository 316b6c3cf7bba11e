//! The transformer block: the only one, for training, prefill, decoding, quantised and adapted weights.
//!
//! Shapes: n tokens of all sequences, d width, h heads, k kv heads, e head width, f width of the MLP. A bank is one
//! or more linear maps that write one buffer, here cut into columns.

use planish_tape::Var;
use planish_tape::ops::{add, gated, norm, rope};

use crate::params::LayerParams;
use crate::pass::Pass;
use crate::spec::Layer;

/// One block: x + attention(norm(x)), then y + mlp(norm(y)).
pub fn block(cx: &mut Pass, s: &Layer, p: &LayerParams, x_nd: Var) -> Var {
    let a_nd = norm(cx.tape, x_nd, &p.attn_norm);
    let a_nd = attention(cx, s, p, a_nd);
    let y_nd = add(cx.tape, x_nd, a_nd, 1.0);
    let m_nd = norm(cx.tape, y_nd, &p.mlp_norm);
    let m_nd = mlp(cx, s, p, m_nd);
    add(cx.tape, y_nd, m_nd, 1.0)
}

fn attention(cx: &mut Pass, s: &Layer, p: &LayerParams, x_nd: Var) -> Var {
    let (he, ke) = (s.heads.query * s.heads.width, s.heads.kv * s.heads.width);
    let qkv_n = cx.bank(x_nd, &p.qkv);
    let q_nhe = cx.tape.columns(qkv_n, 0, he);
    let k_nke = cx.tape.columns(qkv_n, he, ke);
    let v_nke = cx.tape.columns(qkv_n, he + ke, ke);
    let (q_nhe, k_nke) = match &p.qk_norm {
        Some([q_norm, k_norm]) => (norm(cx.tape, q_nhe, q_norm), norm(cx.tape, k_nke, k_norm)),
        None => (q_nhe, k_nke),
    };
    let q_nhe = rope(cx.tape, q_nhe, cx.batch.positions, &cx.rotary(s));
    let k_nke = rope(cx.tape, k_nke, cx.batch.positions, &cx.rotary(s));
    let a_nhe = cx.attend(s, q_nhe, k_nke, v_nke);
    cx.bank(a_nhe, std::slice::from_ref(&p.out))
}

fn mlp(cx: &mut Pass, s: &Layer, p: &LayerParams, x_nd: Var) -> Var {
    let gate_up_n = cx.bank(x_nd, &p.gate_up);
    let gate_nf = cx.tape.columns(gate_up_n, 0, s.ff);
    let up_nf = cx.tape.columns(gate_up_n, s.ff, s.ff);
    let h_nf = gated(cx.tape, gate_nf, up_nf, s.act);
    cx.bank(h_nf, std::slice::from_ref(&p.down))
}
