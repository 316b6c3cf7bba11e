//! The calls of optimizers. Vectors are [1, n]; numbers that change from step to step are in `hyper`, where differences
//! such as 1 - b1 have been taken in double precision. The gradient is taken times the clip factor, the last of them.

/// Defines the calls it is given, and these.
macro_rules! with_updates {
    ($($calls:tt)*) => {
        calls! {
            $($calls)*
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
            /// One step of SGD with momentum (Sutskever et al., 2013) on f32 masters, in place: m = mu m + g,
            /// p = p (1 - lr wd) - lr (a g + b m); a = 0, b = 1 is heavy ball, a = 1, b = mu Nesterov's.
            Sgd {
                reads {
                    /// [1, n].
                    grad: View,
                    /// [1, 5]: lr, mu, a, b, clip factor.
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                    /// [1, n].
                    m: View,
                }
                consts {
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// One step of Lion (Chen et al., 2023) on f32 masters, in place:
            /// p = p (1 - lr wd) - lr sign(b1 m + (1-b1) g), m = b2 m + (1-b2) g.
            Lion {
                reads {
                    /// [1, n].
                    grad: View,
                    /// [1, 6]: lr, b1, 1 - b1, b2, 1 - b2, clip factor.
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                    /// [1, n].
                    m: View,
                }
                consts {
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// The second moments of Adafactor (Shazeer and Stern, 2018), as means over rows and over columns:
            /// `rows[i] = b2 rows[i] + (1-b2) mean_j(g^2 + eps)`, and `cols[j]` likewise.
            FactoredMoments {
                reads {
                    /// [r, c].
                    grad: View,
                    /// [1, 6]: lr, b2, 1 - b2, eps, largest root mean square of an update, clip factor.
                    hyper: View,
                }
                writes {
                    /// [1, r].
                    rows: View,
                    /// [1, c].
                    cols: View,
                }
                consts {}
            }
            /// `sums[i]` = sum of the squares of row i of Adafactor's update u = g / sqrt(v), where
            /// `v[i, j] = rows[i] cols[j] / mean(rows)`.
            FactoredSquares {
                reads {
                    /// [r, c].
                    grad: View,
                    /// As in [`FactoredMoments`].
                    hyper: View,
                    /// [1, r].
                    rows: View,
                    /// [1, c].
                    cols: View,
                }
                writes {
                    /// [1, r] F64.
                    sums: View,
                }
                consts {}
            }
            /// Adafactor's step on f32 masters, in place: p = p (1 - lr wd) - lr u / max(1, rms(u) / largest).
            FactoredStep {
                reads {
                    /// [r, c].
                    grad: View,
                    /// As in [`FactoredMoments`].
                    hyper: View,
                    /// [1, r].
                    rows: View,
                    /// [1, c].
                    cols: View,
                    /// [1, r] F64: as [`FactoredSquares`] leaves it.
                    sums: View,
                }
                writes {
                    /// [r, c].
                    param: View,
                }
                consts {
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// [`AdamW`] with both moments as codes of 8 bits in blocks of [`super::CODE_BLOCK`] elements (Dettmers et al., 2022):
            /// `element = map[code] * scale of the block`, with the dynamic maps of [`crate::dynamic`].
            AdamW8 {
                reads {
                    /// [1, n].
                    grad: View,
                    /// As in [`AdamW`].
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                    /// [1, n] I8: codes, signed map.
                    m: View,
                    /// [1, n] I8: codes, unsigned map.
                    v: View,
                    /// [1, blocks]: the largest magnitude of each block.
                    m_scale: View,
                    /// [1, blocks].
                    v_scale: View,
                }
                consts {
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// Nesterov's direction: m = mu m + g, out = g + mu m.
            Momentum {
                reads {
                    /// [1, n].
                    grad: View,
                    /// [1, 3]: lr, mu, clip factor.
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    m: View,
                    /// [1, n].
                    out: View,
                }
                consts {}
            }
            /// x = x / max(its norm, eps), in place.
            Normalise {
                reads {
                    /// [1, blocks] F64: as [`SumSquares`] leaves it for x.
                    sums: View,
                }
                writes {
                    /// [1, n].
                    x: View,
                }
                consts {
                    /// Smallest divisor.
                    eps: f32,
                }
            }
            /// A step along a direction d on f32 masters, in place: p = p (1 - lr wd) - lr scale d.
            Descend {
                reads {
                    /// [1, n].
                    direction: View,
                    /// As in [`Momentum`].
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                }
                consts {
                    /// Factor on the direction, from the tensor's shape.
                    scale: f32,
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// Schedule-free training (Defazio et al., 2024) goes to the point where its gradient is taken: x = p,
            /// p = (1-b1) z + b1 x. Before the first step z is x.
            Extrapolate {
                reads {
                    /// As in [`ScheduleFree`].
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                    /// [1, n].
                    x: View,
                    /// [1, n].
                    z: View,
                }
                consts {}
            }
            /// Schedule-free AdamW (Defazio et al., 2024), from the point that [`Extrapolate`] went to back to the average:
            /// v = b2 v + (1-b2) g^2, z = z - lr (g / (sqrt(v/c2) + eps) + wd p), p = x + c (z - x), where c = w / (sum of all w
            /// so far), w = (largest lr so far)^2.
            ScheduleFree {
                reads {
                    /// [1, n].
                    grad: View,
                    /// [1, 9]: lr, b1, 1 - b1, b2, 1 - b2, eps, c2 = 1 - b2^t, 1 in the first step and else 0, clip factor.
                    hyper: View,
                    /// [1, n].
                    x: View,
                }
                writes {
                    /// [1, n].
                    param: View,
                    /// [1, n].
                    z: View,
                    /// [1, n].
                    v: View,
                    /// [1, 2] F64: the largest lr so far, and the sum of all w.
                    weights: View,
                }
                consts {
                    /// Decoupled weight decay of this tensor.
                    weight_decay: f32,
                }
            }
            /// A running average, in place: y = y + share (x - y).
            Average {
                reads {
                    /// [1, n].
                    x: View,
                    /// [1, 1]: share.
                    hyper: View,
                }
                writes {
                    /// [1, n].
                    y: View,
                }
                consts {}
            }
        }
    };
}
