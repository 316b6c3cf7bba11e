//! Projections with a tensor for each head, as files of toy have them: `blk.0.attn_q.head_3.weight`.
//!
//! A model has one tensor of all heads; joined in their order, the rows of the one are those of the others.

use std::collections::BTreeMap;

use planish_base::{Error, Result};
use planish_store::Bytes;

use crate::weights::{WeightEntry, Weights};

/// The name of the joined tensor and the number of the head, of a tensor of one head.
pub fn head_of(name: &str) -> Option<(String, usize)> {
    let (stem, rest) = name.split_once(".head_")?;
    let (number, suffix) = rest.split_once('.')?;
    let projection = ["attn_q", "attn_k", "attn_v"].iter().any(|p| stem.ends_with(p));
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let number =
        number.parse().ok().filter(|_| digits && projection && ["weight", "bias"].contains(&suffix))?;
    Some((format!("{stem}.{suffix}"), number))
}

/// Joins the heads of every projection.
///
/// # Errors
/// Kind `Input` when a head is missing, when heads differ in type or shape, or when the joined tensor is there too.
pub(crate) fn join(weights: &mut Weights) -> Result<()> {
    let mut heads: BTreeMap<String, BTreeMap<usize, WeightEntry>> = BTreeMap::new();
    for (name, entry) in &weights.entries {
        if let Some((joined, head)) = head_of(name) {
            heads.entry(joined).or_default().insert(head, entry.clone());
        }
    }
    weights.entries.retain(|name, _| head_of(name).is_none());
    for (name, heads) in heads {
        if weights.entries.contains_key(&name) {
            let message = format!("tensor `{name}` is there as a whole and head by head");
            return Err(Error::input("unexpected tensor", message));
        }
        let parts = in_order(&name, heads)?;
        let entry = joined(weights, &parts);
        weights.entries.insert(name, entry);
    }
    Ok(())
}

/// The heads of a projection, all there and alike.
fn in_order(name: &str, heads: BTreeMap<usize, WeightEntry>) -> Result<Vec<WeightEntry>> {
    if let Some((expected, _)) = (0..).zip(heads.keys()).find(|(i, head)| i != *head) {
        let message = format!("tensor `{name}` has no head {expected}, but later ones");
        return Err(Error::input("missing tensor", message));
    }
    let parts: Vec<WeightEntry> = heads.into_values().collect();
    let shape = |e: &WeightEntry| (e.rows, e.cols, e.dtype);
    match parts.iter().position(|e| shape(e) != shape(&parts[0])) {
        Some(head) => {
            let message = format!("head {head} of tensor `{name}` has another shape or type than head 0");
            Err(Error::input("shape", message))
        }
        None => Ok(parts),
    }
}

/// One entry of all parts: where they lie one after the other a view of the file, else a copy in memory.
fn joined(weights: &mut Weights, parts: &[WeightEntry]) -> WeightEntry {
    let first = &parts[0];
    let size = weights.bytes(first).len() as u64;
    let adjacent = (0..).zip(parts).all(|(i, e)| e.offset == first.offset + i * size);
    let (rows, cols) = match first.rows {
        1 => (1, first.cols * parts.len()),
        rows => (rows * parts.len(), first.cols),
    };
    let (file, offset) = match adjacent {
        true => (first.file, first.offset),
        false => {
            let copy: Vec<u8> = parts.iter().flat_map(|e| weights.bytes(e)).copied().collect();
            weights.files.push(Bytes::from_vec(copy));
            (weights.files.len() - 1, 0)
        }
    };
    WeightEntry { file, offset, rows, cols, dtype: first.dtype }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_heads() {
        let head = |name: &str| head_of(name).map(|(name, head)| format!("{name} {head}"));
        assert_eq!(head("blk.3.attn_q.head_12.weight").as_deref(), Some("blk.3.attn_q.weight 12"));
        assert_eq!(head("blk.0.attn_v.head_0.bias").as_deref(), Some("blk.0.attn_v.bias 0"));
        for other in [
            "blk.3.attn_q.weight",
            "blk.3.attn_output.head_0.weight",
            "blk.3.attn_q.head_.weight",
            "blk.3.attn_q.head_+1.weight",
            "blk.3.attn_q.head_1.lora_a.weight",
            "blk.3.attn_q.head_99999999999999999999.weight",
        ] {
            assert_eq!(head(other), None, "{other}");
        }
    }
}
