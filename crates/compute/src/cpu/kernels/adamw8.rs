//! One AdamW step on one tensor whose moments are kept as codes of 8 bits.

use super::adamw;
use crate::call::{AdamW8, CODE_BLOCK};
use crate::cpu::Cx;
use crate::dynamic::{self, Map};
use crate::isa::isa_fn;

pub fn adamw8(cx: &mut Cx, c: &AdamW8) {
    let grad = cx.memory.rows::<f32>(&c.grad).vector();
    let hyper = cx.memory.rows::<f32>(&c.hyper).vector();
    let param = cx.memory.rows_mut::<f32>(&c.param);
    let codes = [&c.m, &c.v].map(|v| cx.memory.rows_mut::<u8>(v));
    let scales = [&c.m_scale, &c.v_scale].map(|v| cx.memory.rows_mut::<f32>(v));
    let (isa, n) = (cx.isa, grad.len());
    cx.by_blocks(n.div_ceil(CODE_BLOCK), CODE_BLOCK, |blocks, _| {
        let all = blocks.start * CODE_BLOCK..(blocks.end * CODE_BLOCK).min(n);
        // SAFETY: tasks own disjoint elements.
        let mut param = unsafe { param.part(0..1, all.clone()) };
        // SAFETY: as above.
        let mut codes = codes.map(|v| unsafe { v.part(0..1, all.clone()) });
        // SAFETY: as above.
        let mut scales = scales.map(|v| unsafe { v.part(0..1, blocks.clone()) });
        let [m, v] = codes.each_mut().map(|p| p.row(0));
        let [m_scale, v_scale] = scales.each_mut().map(|p| p.row(0));
        let (p, grad) = (param.row(0), &grad[all]);
        for b in 0..blocks.len() {
            let at = b * CODE_BLOCK..((b + 1) * CODE_BLOCK).min(grad.len());
            let m = Moment { map: &dynamic::SIGNED, codes: &mut m[at.clone()], scale: &mut m_scale[b] };
            let v = Moment { map: &dynamic::UNSIGNED, codes: &mut v[at.clone()], scale: &mut v_scale[b] };
            block(isa, &grad[at.clone()], &mut p[at], m, v, hyper, c.weight_decay);
        }
    });
}

/// A moment of one block.
struct Moment<'a> {
    map: &'static Map,
    codes: &'a mut [u8],
    scale: &'a mut f32,
}

impl Moment<'_> {
    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        self.map.decode(self.codes, *self.scale, out);
    }

    #[inline(always)]
    fn encode(self, values: &[f32]) {
        *self.scale = self.map.encode(values, self.codes);
    }
}

isa_fn! {
    /// The parameters see the moments as they are before they are rounded again.
    fn block(grad: &[f32], p: &mut [f32], m: Moment, v: Moment, hyper: &[f32], decay: f32) {
        let (mut ms, mut vs) = ([0f32; CODE_BLOCK], [0f32; CODE_BLOCK]);
        let (ms, vs) = (&mut ms[..grad.len()], &mut vs[..grad.len()]);
        m.decode(ms);
        v.decode(vs);
        adamw::update(grad, p, ms, vs, hyper, decay);
        m.encode(ms);
        v.encode(vs);
    }
}
