//! Where a matrix lies: a buffer, an offset, a shape, a stride and a type.

use planish_base::TypeId;

/// The memory that a view points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// A temporary of a program that has not been planned yet.
    Temp(u32),
    /// The arena: where a planned program keeps its temporaries.
    Arena,
    /// A buffer that outlives programs: parameters, gradients, optimizer slots, KV blocks, inputs.
    Fixed(u32),
}

/// A row-major matrix of `rows` x `cols` elements. Row r begins at element r * `stride`.
///
/// For block types `cols`, `stride` and column offsets are whole blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// The memory it points into.
    pub home: Home,
    /// Bytes from the start of that memory to the first element.
    pub offset: u64,
    /// Number of rows.
    pub rows: usize,
    /// Elements in a row.
    pub cols: usize,
    /// Elements from the start of one row to the start of the next.
    pub stride: usize,
    /// Element type; `I32` words hold ids, positions and lengths.
    pub dtype: TypeId,
}

impl View {
    /// A view without gaps.
    pub fn new(home: Home, offset: u64, rows: usize, cols: usize, dtype: TypeId) -> Self {
        View { home, offset, rows, cols, stride: cols, dtype }
    }

    /// Bytes of `n` elements of the view's type (whole blocks).
    pub fn bytes_of(&self, n: usize) -> u64 {
        let layout = self.dtype.layout().expect("a view's type is in the table");
        // Calls ask often, and most types have no blocks to divide by.
        let blocks = if layout.block == 1 { n as u64 } else { n as u64 / layout.block };
        blocks * layout.bytes
    }

    /// Bytes of one stored row without the gap after it.
    pub fn row_bytes(&self) -> u64 {
        self.bytes_of(self.cols)
    }

    /// Bytes from the first element to the end of the last row.
    pub fn span(&self) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        self.bytes_of((self.rows - 1) * self.stride + self.cols)
    }

    /// Columns `start .. start + cols` of every row.
    pub fn columns(&self, start: usize, cols: usize) -> View {
        assert!(start + cols <= self.cols, "columns {start}..{} of {}", start + cols, self.cols);
        View { offset: self.offset + self.bytes_of(start), cols, ..*self }
    }

    /// Rows `start .. start + rows`.
    pub fn rows_range(&self, start: usize, rows: usize) -> View {
        assert!(start + rows <= self.rows, "rows {start}..{} of {}", start + rows, self.rows);
        View { offset: self.offset + self.bytes_of(start * self.stride), rows, ..*self }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether rows follow each other without a gap.
    pub fn is_dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.cols
    }
}
