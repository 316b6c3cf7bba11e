//! Where the time of a program goes.

use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::call::Call;
use crate::program::{Program, Stage};

/// The calls of one operation in one pass of a program.
#[derive(Clone, Debug)]
pub struct OpTime {
    /// The pass.
    pub stage: Stage,
    /// The operation; products say which side is how large.
    pub op: String,
    /// How many calls.
    pub calls: usize,
    /// Their time together.
    pub time: Duration,
    /// Multiplications of matrix products; 0 for other operations.
    pub multiplications: u64,
}

/// Runs a planned program as [`Backend::run`] does and times each call; the operations that take longest come first.
pub fn profile(backend: &mut impl Backend, program: &Program) -> Vec<OpTime> {
    let mut times: Vec<OpTime> = Vec::new();
    for (i, call) in program.calls().iter().enumerate() {
        let start = Instant::now();
        backend.exec(call);
        let (time, stage, op) = (start.elapsed(), program.label(i).stage, name(call));
        let multiplications = multiplications(call);
        match times.iter_mut().find(|t| t.stage == stage && t.op == op) {
            Some(t) => {
                t.calls += 1;
                t.time += time;
                t.multiplications += multiplications;
            }
            None => times.push(OpTime { stage, op, calls: 1, time, multiplications }),
        }
    }
    times.sort_by_key(|t| std::cmp::Reverse(t.time));
    times
}

/// Multiplications of a matrix product; 0 for other operations.
pub fn multiplications(call: &Call) -> u64 {
    match call {
        Call::MatMul(c) => (c.c.rows * c.c.cols * c.k()) as u64,
        _ => 0,
    }
}

fn name(call: &Call) -> String {
    match call {
        Call::MatMul(c) => {
            format!("MatMul {} x {} x {} ({})", c.c.rows, c.k(), c.c.cols, c.b.dtype.name())
        }
        other => other.name().to_owned(),
    }
}
