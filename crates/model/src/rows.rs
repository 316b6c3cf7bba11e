//! The two orders of the rows of q and k.
//!
//! Rotary embedding turns pairs of a head's elements. Hugging Face files keep the two elements of pair j at rows j and
//! d/2 + j of a head, GGUF files of some families (`Arch::permuted`) at rows 2j and 2j + 1.

/// Rows in Hugging Face order to GGUF order. `values` are whole rows of any width, `rows` of them, in heads of
/// `head_width` rows.
///
/// # Panics
/// When the rows are not whole heads of an even width.
pub fn interleave_rows<T: Copy>(values: &[T], rows: usize, head_width: usize) -> Vec<T> {
    reorder(values, rows, head_width, |i, half| i / 2 + i % 2 * half)
}

/// Rows in GGUF order to Hugging Face order: the inverse of [`interleave_rows`].
///
/// # Panics
/// As [`interleave_rows`].
pub fn halve_rows<T: Copy>(values: &[T], rows: usize, head_width: usize) -> Vec<T> {
    reorder(values, rows, head_width, |i, half| i % half * 2 + i / half)
}

/// Row i of a head comes from row `source(i, head_width / 2)`.
fn reorder<T: Copy>(
    values: &[T],
    rows: usize,
    head_width: usize,
    source: fn(usize, usize) -> usize,
) -> Vec<T> {
    assert!(rows.is_multiple_of(head_width) && head_width.is_multiple_of(2), "{rows} rows of {head_width}");
    let width = values.len() / rows;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, i) = (row / head_width, row % head_width);
        let from = head * head_width + source(i, head_width / 2);
        out.extend_from_slice(&values[from * width..(from + 1) * width]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `W.reshape(heads, 2, d/2, in).swap(1, 2)`, as convert_hf_to_gguf.py permutes.
    #[test]
    fn pairs_become_neighbours_and_come_back() {
        let halves: Vec<u32> = (0..24).collect();
        let interleaved = interleave_rows(&halves, 12, 6);
        assert_eq!(interleaved[..12], [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(interleaved[12..14], [12, 13]);
        assert_eq!(halve_rows(&interleaved, 12, 6), halves);
    }
}
