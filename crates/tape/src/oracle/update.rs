//! The calls of optimizers, as their papers write them.

use planish_compute::View;
use planish_compute::call::{self, CODE_BLOCK, SUM_BLOCK};

use super::Oracle;

impl Oracle {
    pub(super) fn sum_squares(&mut self, c: &call::SumSquares) {
        self.each(&c.out, |o, _, i| {
            let block = i * SUM_BLOCK..((i + 1) * SUM_BLOCK).min(c.x.cols);
            block.map(|j| o.get(&c.x, 0, j).powi(2)).sum()
        });
    }

    fn numbers<const N: usize>(&self, hyper: &View) -> [f64; N] {
        std::array::from_fn(|i| self.get(hyper, 0, i))
    }

    fn total(&self, v: &View) -> f64 {
        (0..v.cols).map(|i| self.get(v, 0, i)).sum()
    }

    pub(super) fn adamw(&mut self, c: &call::AdamW) {
        let [lr, b1, a1, b2, a2, eps, c1, c2, clip] = self.numbers(&c.hyper);
        for i in 0..c.grad.cols {
            let g = self.get(&c.grad, 0, i) * clip;
            let m = b1 * self.get(&c.m, 0, i) + a1 * g;
            let v = b2 * self.get(&c.v, 0, i) + a2 * g * g;
            let p = self.get(&c.param, 0, i) * (1.0 - lr * f64::from(c.weight_decay));
            self.set(&c.m, 0, i, m);
            self.set(&c.v, 0, i, v);
            self.set(&c.param, 0, i, p - lr * (m / c1) / ((v / c2).sqrt() + eps));
        }
    }

    pub(super) fn sgd(&mut self, c: &call::Sgd) {
        let [lr, mu, a, b, clip] = self.numbers(&c.hyper);
        for i in 0..c.grad.cols {
            let g = self.get(&c.grad, 0, i) * clip;
            let m = mu * self.get(&c.m, 0, i) + g;
            let p = self.get(&c.param, 0, i) * (1.0 - lr * f64::from(c.weight_decay));
            self.set(&c.m, 0, i, m);
            self.set(&c.param, 0, i, p - lr * (a * g + b * m));
        }
    }

    pub(super) fn lion(&mut self, c: &call::Lion) {
        let [lr, b1, a1, b2, a2, clip] = self.numbers(&c.hyper);
        for i in 0..c.grad.cols {
            let (g, m) = (self.get(&c.grad, 0, i) * clip, self.get(&c.m, 0, i));
            let direction = b1 * m + a1 * g;
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            let p = self.get(&c.param, 0, i) * (1.0 - lr * f64::from(c.weight_decay));
            self.set(&c.m, 0, i, b2 * m + a2 * g);
            self.set(&c.param, 0, i, p - lr * sign);
        }
    }

    pub(super) fn average(&mut self, c: &call::Average) {
        let [share] = self.numbers(&c.hyper);
        self.each(&c.y, |o, _, i| (1.0 - share) * o.get(&c.y, 0, i) + share * o.get(&c.x, 0, i));
    }

    pub(super) fn factored_moments(&mut self, c: &call::FactoredMoments) {
        let [_, b2, a2, eps, _, clip] = self.numbers(&c.hyper);
        let (n, m) = (c.grad.rows, c.grad.cols);
        let square = |o: &Self, i, j| (o.get(&c.grad, i, j) * clip).powi(2) + eps;
        self.each(&c.rows, |o, _, i| {
            let mean = (0..m).map(|j| square(o, i, j)).sum::<f64>() / m as f64;
            b2 * o.get(&c.rows, 0, i) + a2 * mean
        });
        self.each(&c.cols, |o, _, j| {
            let mean = (0..n).map(|i| square(o, i, j)).sum::<f64>() / n as f64;
            b2 * o.get(&c.cols, 0, j) + a2 * mean
        });
    }

    /// Element (i, j) of Adafactor's update.
    fn factored(&self, grad: &View, rows: &View, cols: &View, mean: f64, (i, j): (usize, usize)) -> f64 {
        self.get(grad, i, j) / (self.get(rows, 0, i) * self.get(cols, 0, j) / mean).sqrt()
    }

    pub(super) fn factored_squares(&mut self, c: &call::FactoredSquares) {
        let clip: f64 = self.get(&c.hyper, 0, 5);
        let mean = self.total(&c.rows) / c.rows.cols as f64;
        self.each(&c.sums, |o, _, i| {
            let u = |j| clip * o.factored(&c.grad, &c.rows, &c.cols, mean, (i, j));
            (0..c.grad.cols).map(|j| u(j).powi(2)).sum()
        });
    }

    pub(super) fn factored_step(&mut self, c: &call::FactoredStep) {
        let [lr, _, _, _, largest, clip] = self.numbers(&c.hyper);
        let mean = self.total(&c.rows) / c.rows.cols as f64;
        let rms = (self.total(&c.sums) / c.grad.elements() as f64).sqrt();
        self.each(&c.param, |o, i, j| {
            let u = clip * o.factored(&c.grad, &c.rows, &c.cols, mean, (i, j));
            let p = o.get(&c.param, i, j) * (1.0 - lr * f64::from(c.weight_decay));
            p - lr * u / (rms / largest).max(1.0)
        });
    }

    pub(super) fn adamw8(&mut self, c: &call::AdamW8) {
        let [lr, b1, a1, b2, a2, eps, c1, c2, clip] = self.numbers(&c.hyper);
        let (signed, unsigned) = (dynamic_map(1), dynamic_map(2));
        for block in 0..c.m_scale.cols {
            let at = block * CODE_BLOCK..((block + 1) * CODE_BLOCK).min(c.grad.cols);
            let decode = |o: &Self, map: &[f64], codes: &View, scale: &View, i| {
                map[o.get(codes, 0, i) as usize] * o.get(scale, 0, block)
            };
            let (mut ms, mut vs) = (Vec::new(), Vec::new());
            for i in at.clone() {
                let g = self.get(&c.grad, 0, i) * clip;
                let m = b1 * decode(self, &signed, &c.m, &c.m_scale, i) + a1 * g;
                let v = b2 * decode(self, &unsigned, &c.v, &c.v_scale, i) + a2 * g * g;
                let p = self.get(&c.param, 0, i) * (1.0 - lr * f64::from(c.weight_decay));
                self.set(&c.param, 0, i, p - lr * (m / c1) / ((v / c2).sqrt() + eps));
                ms.push(m);
                vs.push(v);
            }
            for (map, values, codes, scales) in
                [(&signed, ms, &c.m, &c.m_scale), (&unsigned, vs, &c.v, &c.v_scale)]
            {
                let scale = values.iter().fold(0f64, |s, x| s.max(x.abs()));
                self.set(scales, 0, block, scale);
                for (i, x) in at.clone().zip(values) {
                    self.set(codes, 0, i, nearest(map, x / scale));
                }
            }
        }
    }

    pub(super) fn momentum(&mut self, c: &call::Momentum) {
        let [_, mu, clip] = self.numbers(&c.hyper);
        for i in 0..c.grad.elements() {
            let g = self.get(&c.grad, 0, i) * clip;
            let m = mu * self.get(&c.m, 0, i) + g;
            self.set(&c.m, 0, i, m);
            self.set(&c.out, 0, i, g + mu * m);
        }
    }

    pub(super) fn normalise(&mut self, c: &call::Normalise) {
        let norm = self.total(&c.sums).sqrt().max(f64::from(c.eps));
        self.each(&c.x, |o, _, i| o.get(&c.x, 0, i) / norm);
    }

    pub(super) fn descend(&mut self, c: &call::Descend) {
        let lr = self.get(&c.hyper, 0, 0);
        self.each(&c.param, |o, _, i| {
            let p = o.get(&c.param, 0, i) * (1.0 - lr * f64::from(c.weight_decay));
            p - lr * f64::from(c.scale) * o.get(&c.direction, 0, i)
        });
    }

    pub(super) fn extrapolate(&mut self, c: &call::Extrapolate) {
        let [_, b1, a1, _, _, _, _, first, _] = self.numbers(&c.hyper);
        for i in 0..c.param.cols {
            let x = self.get(&c.param, 0, i);
            let z = if first == 1.0 { x } else { self.get(&c.z, 0, i) };
            self.set(&c.x, 0, i, x);
            self.set(&c.z, 0, i, z);
            self.set(&c.param, 0, i, a1 * z + b1 * x);
        }
    }

    pub(super) fn schedule_free(&mut self, c: &call::ScheduleFree) {
        let [lr, _, _, b2, a2, eps, c2, _, clip] = self.numbers(&c.hyper);
        let largest = self.get(&c.weights, 0, 0).max(lr);
        let sum = self.get(&c.weights, 0, 1) + largest.powi(2);
        self.set(&c.weights, 0, 0, largest);
        self.set(&c.weights, 0, 1, sum);
        let share = largest.powi(2) / sum;
        for i in 0..c.grad.cols {
            let (g, y) = (self.get(&c.grad, 0, i) * clip, self.get(&c.param, 0, i));
            let v = b2 * self.get(&c.v, 0, i) + a2 * g * g;
            let d = g / ((v / c2).sqrt() + eps) + f64::from(c.weight_decay) * y;
            let z = self.get(&c.z, 0, i) - lr * d;
            self.set(&c.v, 0, i, v);
            self.set(&c.z, 0, i, z);
            self.set(&c.param, 0, i, (1.0 - share) * self.get(&c.x, 0, i) + share * z);
        }
    }
}

/// The 256 values of a dynamic map in ascending order: those of seven decades, 0 and 1.
fn dynamic_map(first: usize) -> Vec<f64> {
    let mut values = vec![0.0, 1.0];
    for e in 0..7 {
        let n = first << e;
        let centres = (0..n).map(|j| 10f64.powi(e - 6) * (0.1 + 0.9 * (j as f64 + 0.5) / n as f64));
        centres.for_each(|x| values.extend(if first == 1 { vec![x, -x] } else { vec![x] }));
    }
    values.sort_by(f64::total_cmp);
    assert_eq!(values.len(), 256);
    values
}

fn nearest(map: &[f64], x: f64) -> f64 {
    let distance = |i: &usize| (map[*i] - x).abs();
    (0..map.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0) as f64
}
