//! The same bytes on any number of threads, and after any kill and resume: one hash of the last weights over all.
//!
//! `cargo xtask bits` runs the whole table; by itself the test takes a few cells of it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr)] // a test fails and reports

mod common;

use std::collections::BTreeMap;

use common::runs::{Runs, Shape, kill_at, long};

const STEPS: usize = 200;

fn one_hash(full: bool, precision: &'static str) {
    let (threads, stops): (&[usize], &[usize]) = match long("PLANISH_BITS_LONG") {
        Some(_) => (&[1, 2, 3, 8], &[0, 13, 50, 99, 140, 199]),
        None => (&[1, 3], &[0, 50, 199]),
    };
    let runs = Runs::new(Shape { steps: STEPS, save_every: 7, full, precision });
    let mut hashes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &n in threads {
        for &stop in stops {
            let name = format!("{n}-{stop}");
            if stop > 0 {
                kill_at(runs.command(&name, n).spawn().unwrap(), stop);
            }
            hashes.entry(runs.finish(&name, n)).or_default().push(name);
        }
    }
    let (recipe, count) = (if full { "full" } else { "lora" }, threads.len() * stops.len());
    eprintln!("{recipe} {precision}: {} hash over {count} runs of {STEPS} steps: {hashes:?}", hashes.len());
    assert_eq!(hashes.len(), 1, "runs (threads-killed at step) by hash: {hashes:?}");
}

#[test]
fn an_adapter_on_a_quantised_base() {
    one_hash(false, "f32");
}

#[test]
fn all_weights() {
    one_hash(true, "f32");
}

#[test]
fn products_of_bf16() {
    one_hash(false, "bf16");
}
