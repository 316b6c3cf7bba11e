//! Rotary position embedding.

use planish_compute::View;
use planish_compute::call::{Direction, Rope, RopeStyle};

use super::Example;
use crate::tape::{Tape, Var};

/// Angles and layout of a rotation.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// [positions, width]: cos and sin of each pair, interleaved.
    pub table: View,
    /// Width of a head.
    pub width: usize,
    /// Which elements are a pair.
    pub style: RopeStyle,
}

/// Rotates each head of x [n, heads * width] by its row's position, in place.
pub fn rope(t: &mut Tape, x: Var, positions: View, p: &Rotary) -> Var {
    let xv = t.view(x);
    assert!(xv.cols.is_multiple_of(p.width) && p.table.cols == p.width, "shapes of a rotation");
    let call = Rope {
        positions,
        table: p.table,
        x: xv,
        width: p.width,
        style: p.style,
        direction: Direction::Forward,
    };
    t.call(call);
    // A rotation's transpose is the rotation by the negative angle.
    t.push_in_place(x, move |t, dy| t.call(Rope { x: dy, direction: Direction::Backward, ..call }))
}

pub(super) fn example(t: &mut Tape, e: &mut Example) -> Var {
    let angles: Vec<f32> = (0..6 * 4).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();
    let table = e.floats(6, 8, &angles);
    let positions = e.words(3, 1, &[5, 0, 3]);
    let x = e.param(3, 32);
    let zero = e.param(3, 32);
    let (x, zero) = (t.leaf(&x), t.leaf(&zero));
    // In place would overwrite the parameter itself.
    let x = super::add(t, x, zero, 1.0);
    let (a, b) = (t.columns(x, 0, 16), t.columns(x, 16, 16));
    let a = rope(t, a, positions, &Rotary { table, width: 8, style: RopeStyle::Interleaved });
    let b = rope(t, b, positions, &Rotary { table, width: 8, style: RopeStyle::Halves });
    super::add(t, a, b, 1.0)
}
