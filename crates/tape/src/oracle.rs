//! A backend that executes calls one element at a time in double precision: what every kernel is tested against.
//!
//! Nothing here is shared with the kernels; formulas are written as in a textbook. An f32 element of a buffer is held
//! as f64, so finite differences through it are good to nine digits.

mod activation;
mod adapt;
mod update;

use planish_base::math::exp_f64;
use planish_base::rng::philox4x32_10;
use planish_base::{Result, TypeId};
use planish_compute::backend::Shared;
use planish_compute::call::{self, Along, Call, Direction, Heads, KV_BLOCK, Product, RopeStyle, Store};
use planish_compute::quant::{Dot, Quant};
use planish_compute::{Backend, Home, Isa, View};

use activation::activation;

/// Element i of a 4-byte buffer is `words[i]`, whatever its type.
enum Buffer {
    Words(Vec<f64>),
    Foreign(Shared),
}

/// See the module.
#[derive(Default)]
pub struct Oracle {
    fixed: Vec<Buffer>,
    arena: Vec<f64>,
}

impl Oracle {
    /// Element (r, c) of a view.
    pub fn get(&self, v: &View, r: usize, c: usize) -> f64 {
        match self.words(v) {
            Some(words) => words[self.index(v, r, c)],
            None => {
                let Home::Fixed(i) = v.home else { unreachable!("the arena is words") };
                let Buffer::Foreign(bytes) = &self.fixed[i as usize] else {
                    unreachable!("words were tried")
                };
                let bytes = &(**bytes).as_ref()[v.offset as usize..];
                let mut out = [0f32];
                let quant = Quant::of(v.dtype).expect("tests use known types");
                quant.decode_range(Isa::Scalar, bytes, r * v.stride + c, &mut out);
                f64::from(out[0])
            }
        }
    }

    /// Sets element (r, c) of a view.
    pub fn set(&mut self, v: &View, r: usize, c: usize, value: f64) {
        let i = self.index(v, r, c);
        match v.home {
            Home::Arena => self.arena[i] = value,
            Home::Fixed(b) => match &mut self.fixed[b as usize] {
                Buffer::Words(w) => w[i] = value,
                Buffer::Foreign(_) => unreachable!("a foreign buffer is read-only"),
            },
            Home::Temp(t) => unreachable!("temporary {t} of a program that was not planned"),
        }
    }

    fn words(&self, v: &View) -> Option<&Vec<f64>> {
        match v.home {
            Home::Arena => Some(&self.arena),
            Home::Fixed(i) => match &self.fixed[i as usize] {
                Buffer::Words(w) => Some(w),
                Buffer::Foreign(_) => None,
            },
            Home::Temp(t) => unreachable!("temporary {t} of a program that was not planned"),
        }
    }

    fn index(&self, v: &View, r: usize, c: usize) -> usize {
        assert!(r < v.rows && c < v.cols, "element ({r}, {c}) of {} x {}", v.rows, v.cols);
        let element = r * v.stride + c;
        // An F64 element takes two words; the first holds it.
        let words = v.bytes_of(1).max(4) as usize / 4;
        v.offset as usize / 4 + element * words
    }

    fn add_to(&mut self, v: &View, r: usize, c: usize, store: Store, value: f64) {
        let old = if store == Store::Replace { 0.0 } else { self.get(v, r, c) };
        self.set(v, r, c, old + value);
    }

    fn id(&self, v: &View, r: usize) -> usize {
        self.get(v, r, 0) as usize
    }

    fn each(&mut self, v: &View, f: impl Fn(&Self, usize, usize) -> f64) {
        for r in 0..v.rows {
            for c in 0..v.cols {
                let x = f(self, r, c);
                self.set(v, r, c, x);
            }
        }
    }
}

impl Backend for Oracle {
    fn alloc(&mut self, bytes: u64) -> Result<Home> {
        self.fixed.push(Buffer::Words(vec![0.0; bytes.div_ceil(4) as usize]));
        Ok(Home::Fixed(self.fixed.len() as u32 - 1))
    }

    fn import(&mut self, bytes: Shared) -> Home {
        self.fixed.push(Buffer::Foreign(bytes));
        Home::Fixed(self.fixed.len() as u32 - 1)
    }

    fn free(&mut self, home: Home) {
        if let Home::Fixed(i) = home {
            self.fixed[i as usize] = Buffer::Words(Vec::new());
        }
    }

    fn reserve(&mut self, arena_bytes: u64) -> Result<()> {
        self.arena.resize(arena_bytes.div_ceil(4) as usize, 0.0);
        Ok(())
    }

    fn upload(&mut self, to: &View, bytes: &[u8]) {
        for (i, b) in bytes.chunks_exact(4).enumerate() {
            let word = [b[0], b[1], b[2], b[3]];
            let value = if to.dtype == TypeId::I32 {
                f64::from(u32::from_le_bytes(word))
            } else {
                f64::from(f32::from_le_bytes(word))
            };
            self.set(to, i / to.cols, i % to.cols, value);
        }
    }

    fn download(&self, from: &View, bytes: &mut [u8]) {
        for (i, b) in bytes.chunks_exact_mut(4).enumerate() {
            let value = self.get(from, i / from.cols, i % from.cols);
            let word = if from.dtype == TypeId::I32 { value as u32 } else { (value as f32).to_bits() };
            b.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn exec(&mut self, call: &Call) {
        match call {
            Call::Embed(c) => {
                self.each(&c.out, |o, r, j| o.get(&c.table, o.id(&c.ids, r), j));
            }
            Call::EmbedBack(c) => {
                for r in 0..c.dy.rows {
                    for j in 0..c.dy.cols {
                        self.add_to(
                            &c.dtable,
                            self.id(&c.ids, r),
                            j,
                            Store::Accumulate,
                            self.get(&c.dy, r, j),
                        );
                    }
                }
            }
            Call::RmsNorm(c) => self.rms_norm(c),
            Call::RmsNormBack(c) => self.rms_norm_back(c),
            Call::RmsNormWeightBack(c) => self.rms_norm_weight_back(c),
            Call::MatMul(c) => self.matmul(c),
            Call::Broadcast(c) => self.each(&c.out, |o, _, j| o.get(&c.row, 0, j)),
            Call::ColumnSum(c) => self.add_rows(&c.out, &c.x, |_, _| 0),
            Call::Rope(c) => self.rope(c),
            Call::Attend(c) => self.attend(c),
            Call::AttendBack(c) => self.attend_back(c),
            Call::KvAppend(c) => self.kv_append(c),
            Call::AttendBlocks(c) => self.attend_blocks(c),
            Call::Gated(c) => {
                self.each(&c.y, |o, r, j| {
                    let g = o.get(&c.gate, r, j);
                    activation(c.act, g).0 * o.get(&c.up, r, j)
                });
            }
            Call::GatedBack(c) => self.gated_back(c),
            Call::Add(c) => {
                self.each(&c.y, |o, r, j| o.get(&c.a, r, j) + f64::from(c.scale) * o.get(&c.b, r, j));
            }
            Call::Gather(c) => self.each(&c.out, |o, r, j| o.get(&c.x, o.id(&c.rows, r), j)),
            Call::Scatter(c) => {
                self.each(&c.dx, |_, _, _| 0.0);
                self.add_rows(&c.dx, &c.dy, |o, r| o.id(&c.rows, r));
            }
            Call::CrossEntropy(c) => self.cross_entropy(c),
            Call::TopK(c) => self.top_k(c),
            Call::Dropout(c) => self.dropout(c),
            Call::Noise(_) | Call::RowNorms(_) | Call::Rescale(_) | Call::MagnitudeBack(_) => {
                self.adapt(call)
            }
            Call::AdamW(c) => self.adamw(c),
            Call::Sgd(c) => self.sgd(c),
            Call::Lion(c) => self.lion(c),
            Call::FactoredMoments(c) => self.factored_moments(c),
            Call::FactoredSquares(c) => self.factored_squares(c),
            Call::FactoredStep(c) => self.factored_step(c),
            Call::AdamW8(c) => self.adamw8(c),
            Call::Momentum(c) => self.momentum(c),
            Call::Normalise(c) => self.normalise(c),
            Call::Descend(c) => self.descend(c),
            Call::Average(c) => self.average(c),
            Call::Extrapolate(c) => self.extrapolate(c),
            Call::ScheduleFree(c) => self.schedule_free(c),
            Call::SumSquares(c) => self.sum_squares(c),
            Call::Zero(c) => self.each(&c.x, |_, _, _| 0.0),
        }
    }
}

impl Oracle {
    /// to[row(r)] += x[r], for every row r of x.
    fn add_rows(&mut self, to: &View, x: &View, row: impl Fn(&Self, usize) -> usize) {
        for r in 0..x.rows {
            for j in 0..x.cols {
                self.add_to(to, row(self, r), j, Store::Accumulate, self.get(x, r, j));
            }
        }
    }

    fn gated_back(&mut self, c: &call::GatedBack) {
        self.each(&c.dgate, |o, r, j| {
            o.get(&c.dy, r, j) * o.get(&c.up, r, j) * activation(c.act, o.get(&c.gate, r, j)).1
        });
        self.each(&c.dup, |o, r, j| o.get(&c.dy, r, j) * activation(c.act, o.get(&c.gate, r, j)).0);
    }

    fn rms_norm_weight_back(&mut self, c: &call::RmsNormWeightBack) {
        for r in 0..c.x.rows {
            for j in 0..c.x.cols {
                let s = self.get(&c.rstd, r, j / c.width);
                let d = self.get(&c.dy, r, j) * self.get(&c.x, r, j) * s;
                self.add_to(&c.dweight, 0, j % c.width, Store::Accumulate, d);
            }
        }
    }

    fn rms_norm(&mut self, c: &call::RmsNorm) {
        for r in 0..c.x.rows {
            for g in 0..c.x.cols / c.width {
                let cols = g * c.width..(g + 1) * c.width;
                let mean: f64 =
                    cols.clone().map(|j| self.get(&c.x, r, j).powi(2)).sum::<f64>() / c.width as f64;
                let s = 1.0 / (mean + f64::from(c.eps)).sqrt();
                for j in cols {
                    let w = c.weight.map_or(1.0, |w| self.get(&w, 0, j % c.width));
                    self.set(&c.y, r, j, self.get(&c.x, r, j) * s * w);
                }
                if let Some(rstd) = c.rstd {
                    self.set(&rstd, r, g, s);
                }
            }
        }
    }

    fn rms_norm_back(&mut self, c: &call::RmsNormBack) {
        for r in 0..c.x.rows {
            for g in 0..c.x.cols / c.width {
                let s = self.get(&c.rstd, r, g);
                let cols = g * c.width..(g + 1) * c.width;
                let wdy = |o: &Self, j: usize| {
                    c.weight.map_or(1.0, |w| o.get(&w, 0, j % c.width)) * o.get(&c.dy, r, j)
                };
                let mean: f64 = cols.clone().map(|j| wdy(self, j) * self.get(&c.x, r, j) * s).sum::<f64>()
                    / c.width as f64;
                for j in cols {
                    let d = s * (wdy(self, j) - self.get(&c.x, r, j) * s * mean);
                    self.add_to(&c.dx, r, j, c.store, d);
                }
            }
        }
    }

    fn matmul(&mut self, c: &call::MatMul) {
        let at = |o: &Self, v: &View, along: Along, i: usize, k: usize| match along {
            Along::K => o.get(v, i, k),
            Along::Outer => o.get(v, k, i),
        };
        let k = c.k();
        let int8 =
            c.product == Product::Dot && Quant::of(c.b.dtype).is_ok_and(|q| matches!(q.dot, Dot::Int8(_)));
        for i in 0..c.c.rows {
            let mut a: Vec<f64> = (0..k).map(|k| at(self, &c.a, c.a_along, i, k)).collect();
            if int8 {
                a.chunks_mut(32).for_each(|a| round_to_integers(a, 127.0));
            }
            let round = |x: &mut [f64]| match c.product {
                Product::Bf16 => x.iter_mut().for_each(|x| *x = round_to_bf16(*x)),
                Product::Int16 => x.chunks_mut(32).for_each(|x| round_to_integers(x, 8191.0)),
                Product::Packed | Product::Dot => (),
            };
            round(&mut a);
            for j in 0..c.c.cols {
                let mut b: Vec<f64> = (0..k).map(|k| at(self, &c.b, c.b_along, j, k)).collect();
                round(&mut b);
                let sum: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                self.add_to(&c.c, i, j, c.store, f64::from(c.scale) * sum);
            }
        }
    }

    fn rope(&mut self, c: &call::Rope) {
        let half = c.width / 2;
        for r in 0..c.x.rows {
            let position = self.id(&c.positions, r);
            for pair in 0..c.x.cols / 2 {
                let (head, i) = (pair / half * c.width, pair % half);
                let (a, b) = match c.style {
                    RopeStyle::Interleaved => (head + 2 * i, head + 2 * i + 1),
                    RopeStyle::Halves => (head + i, head + i + half),
                };
                let cos = self.get(&c.table, position, 2 * i);
                let sin = self.get(&c.table, position, 2 * i + 1);
                let sin = if c.direction == Direction::Forward { sin } else { -sin };
                let (x, y) = (self.get(&c.x, r, a), self.get(&c.x, r, b));
                self.set(&c.x, r, a, x * cos - y * sin);
                self.set(&c.x, r, b, x * sin + y * cos);
            }
        }
    }

    fn segment(&self, segments: &View, i: usize) -> [usize; 4] {
        [0, 1, 2, 3].map(|w| self.get(segments, i, w) as usize)
    }

    fn dot(&self, a: &View, ra: usize, ca: usize, b: &View, rb: usize, cb: usize, n: usize) -> f64 {
        (0..n).map(|e| self.get(a, ra, ca + e) * self.get(b, rb, cb + e)).sum()
    }

    fn attend(&mut self, c: &call::Attend) {
        let (h, w) = (c.heads, c.heads.width);
        for s in 0..c.segments.rows {
            let [first, len, ..] = self.segment(&c.segments, s);
            for (i, head) in (0..len).flat_map(|i| (0..h.query).map(move |head| (i, head))) {
                let kv = head / (h.query / h.kv) * w;
                let scores: Vec<f64> = (0..=i)
                    .map(|j| f64::from(h.scale) * self.dot(&c.q, first + i, head * w, &c.k, first + j, kv, w))
                    .collect();
                let (p, lse) = softmax(&scores);
                self.set(&c.lse, first + i, head, lse);
                for e in 0..w {
                    let sum = p.iter().enumerate().map(|(j, p)| p * self.get(&c.v, first + j, kv + e)).sum();
                    self.set(&c.out, first + i, head * w + e, sum);
                }
            }
        }
    }

    fn attend_back(&mut self, c: &call::AttendBack) {
        let (h, w) = (c.heads, c.heads.width);
        for v in [&c.dq, &c.dk, &c.dv] {
            self.each(v, |_, _, _| 0.0);
        }
        for s in 0..c.segments.rows {
            let [first, len, ..] = self.segment(&c.segments, s);
            for (i, head) in (0..len).flat_map(|i| (0..h.query).map(move |head| (first + i, head))) {
                let (col, kv) = (head * w, head / (h.query / h.kv) * w);
                let delta = self.dot(&c.dout, i, col, &c.out, i, col, w);
                self.set(&c.delta, i, head, delta);
                for j in first..=i {
                    let score = f64::from(h.scale) * self.dot(&c.q, i, col, &c.k, j, kv, w);
                    let p = exp_f64(score - self.get(&c.lse, i, head));
                    let ds = p * (self.dot(&c.dout, i, col, &c.v, j, kv, w) - delta) * f64::from(h.scale);
                    for e in 0..w {
                        let (q, k) = (self.get(&c.q, i, col + e), self.get(&c.k, j, kv + e));
                        let dout = self.get(&c.dout, i, col + e);
                        self.add_to(&c.dq, i, col + e, Store::Accumulate, ds * k);
                        self.add_to(&c.dk, j, kv + e, Store::Accumulate, ds * q);
                        self.add_to(&c.dv, j, kv + e, Store::Accumulate, p * dout);
                    }
                }
            }
        }
    }

    /// The KV block of a position, and the position within it.
    fn block(&self, table: &View, slot: usize, position: usize) -> (usize, usize) {
        (self.get(table, slot, position / KV_BLOCK) as usize, position % KV_BLOCK)
    }

    fn kv_append(&mut self, c: &call::KvAppend) {
        let Heads { kv, width, .. } = c.heads;
        for s in 0..c.segments.rows {
            let [first, len, position, slot] = self.segment(&c.segments, s);
            for i in 0..len {
                let (block, at) = self.block(&c.table, slot, position + i);
                for (h, e) in (0..kv).flat_map(|h| (0..width).map(move |e| (h, e))) {
                    let (k, v) =
                        (self.get(&c.k, first + i, h * width + e), self.get(&c.v, first + i, h * width + e));
                    self.set(&c.k_blocks, (block * kv + h) * width + e, at, k);
                    self.set(&c.v_blocks, (block * kv + h) * KV_BLOCK + at, e, v);
                }
            }
        }
    }

    fn attend_blocks(&mut self, c: &call::AttendBlocks) {
        let (h, w) = (c.heads, c.heads.width);
        for s in 0..c.segments.rows {
            let [first, len, position, slot] = self.segment(&c.segments, s);
            for (i, head) in (0..len).flat_map(|i| (0..h.query).map(move |head| (i, head))) {
                let kv = head / (h.query / h.kv);
                let scores: Vec<f64> = (0..=position + i)
                    .map(|j| {
                        let (block, at) = self.block(&c.table, slot, j);
                        let key = |e| self.get(&c.k_blocks, (block * h.kv + kv) * w + e, at);
                        let dot: f64 = (0..w).map(|e| self.get(&c.q, first + i, head * w + e) * key(e)).sum();
                        f64::from(h.scale) * dot
                    })
                    .collect();
                let (p, _) = softmax(&scores);
                for e in 0..w {
                    let value = |j: usize| {
                        let (block, at) = self.block(&c.table, slot, j);
                        self.get(&c.v_blocks, (block * h.kv + kv) * KV_BLOCK + at, e)
                    };
                    let sum = p.iter().enumerate().map(|(j, p)| p * value(j)).sum();
                    self.set(&c.out, first + i, head * w + e, sum);
                }
            }
        }
    }

    fn cross_entropy(&mut self, c: &call::CrossEntropy) {
        let normaliser = self.get(&c.normaliser, 0, 0);
        for r in 0..c.logits.rows {
            let logits: Vec<f64> = (0..c.logits.cols).map(|j| self.get(&c.logits, r, j)).collect();
            let (p, lse) = softmax(&logits);
            let target = self.id(&c.targets, r);
            self.set(&c.loss, r, 0, lse - logits[target]);
            for (j, p) in p.iter().enumerate() {
                let hot = if j == target { 1.0 } else { 0.0 };
                self.set(&c.logits, r, j, (p - hot) * normaliser);
            }
        }
    }

    fn top_k(&mut self, c: &call::TopK) {
        for r in 0..c.logits.rows {
            let logits: Vec<f64> = (0..c.logits.cols).map(|j| self.get(&c.logits, r, j)).collect();
            let (_, lse) = softmax(&logits);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            for (i, j) in order.into_iter().take(c.ids.cols).enumerate() {
                self.set(&c.ids, r, i, j as f64);
                self.set(&c.logprobs, r, i, logits[j] - lse);
            }
        }
    }

    fn dropout(&mut self, c: &call::Dropout) {
        let key = [0, 1, 2, 3].map(|i| self.get(&c.key, 0, i) as u32);
        let words = c.x.cols.div_ceil(4) as u64;
        self.each(&c.y, |o, r, j| {
            let index = r as u64 * words + (j / 4) as u64;
            let counter = [index as u32, key[3] << 16 ^ (index >> 32) as u32, key[2], c.stream];
            let random = f64::from(philox4x32_10(counter, [key[0], key[1]])[j % 4]);
            let dropped = random < (f64::from(c.p) * 4_294_967_296.0).floor();
            if dropped { 0.0 } else { o.get(&c.x, r, j) / (1.0 - f64::from(c.p)) }
        });
    }
}

/// To eight significant bits, ties to even.
fn round_to_bf16(x: f64) -> f64 {
    f64::from(half::bf16::from_f32(x as f32))
}

/// Rounds to multiples of the `steps`-th part of the largest. Which of two neighbours is nearer is decided in f32, as
/// documented.
fn round_to_integers(x: &mut [f64], steps: f32) {
    let largest = x.iter().fold(0.0, |m: f64, x| m.max(x.abs())) as f32;
    let scale = largest / steps;
    for x in x {
        let q = (*x as f32 * (1.0 / scale)).round_ties_even();
        *x = if largest > 0.0 { f64::from(scale) * f64::from(q) } else { 0.0 };
    }
}

/// Probabilities and the log of the sum of exponentials.
fn softmax(x: &[f64]) -> (Vec<f64>, f64) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| exp_f64(v - max)).sum();
    let lse = max + planish_base::math::ln(sum);
    (x.iter().map(|v| exp_f64(v - lse)).collect(), lse)
}
