//! The buffers of the CPU backend, and typed access to the matrices in them.
//!
//! A kernel gets its operands as [`Rows`] (shared) and [`RowsMut`] (written). Two operands of one call may be the
//! same memory where the call's documentation says "in place"; kernels then read an element before they write it.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use planish_base::{Error, Result, TypeId};

use crate::backend::Shared;
use crate::view::{Home, View};

/// Zeroed memory, aligned for vector loads. Written through raw pointers, since the workers of a call share it.
struct Owned {
    p: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may write which part of it is decided by `RowsMut::part`.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(64), 64).ok()
    }

    /// The system gives pages when they are first touched.
    fn zeroed(bytes: u64) -> Result<Owned> {
        let fail = || Error::resource("memory", format!("cannot allocate {} MB", bytes / 1_000_000));
        let size = usize::try_from(bytes).map_err(|_| fail())?;
        let layout = Self::layout(size).ok_or_else(fail)?;
        // SAFETY: the layout's size is not zero.
        let p = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Owned { p: NonNull::new(p).ok_or_else(fail)?, bytes: size })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let layout = Self::layout(self.bytes).expect("it was allocated with this layout");
        // SAFETY: allocated by `zeroed` with the same layout.
        unsafe { std::alloc::dealloc(self.p.as_ptr(), layout) }
    }
}

enum Buffer {
    Owned(Owned),
    Foreign(Shared),
    Free,
}

impl Buffer {
    /// First byte and length.
    fn raw(&self) -> (*const u8, usize) {
        match self {
            Buffer::Owned(o) => (o.p.as_ptr(), o.bytes),
            Buffer::Foreign(s) => {
                let bytes = (**s).as_ref();
                (bytes.as_ptr(), bytes.len())
            }
            Buffer::Free => (NonNull::dangling().as_ptr(), 0),
        }
    }
}

/// All buffers of a backend.
pub struct Memory {
    fixed: Vec<Buffer>,
    arena: Buffer,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { fixed: Vec::new(), arena: Buffer::Free }
    }
}

impl Memory {
    pub fn alloc(&mut self, bytes: u64) -> Result<Home> {
        let buffer = Buffer::Owned(Owned::zeroed(bytes)?);
        Ok(self.add(buffer))
    }

    pub fn import(&mut self, bytes: Shared) -> Home {
        self.add(Buffer::Foreign(bytes))
    }

    fn add(&mut self, buffer: Buffer) -> Home {
        // Places that were given back are used again: a session a thousand steps must not leave a thousand of them.
        let free = self.fixed.iter().position(|b| matches!(b, Buffer::Free));
        let i = free.unwrap_or(self.fixed.len());
        match free {
            Some(i) => self.fixed[i] = buffer,
            None => self.fixed.push(buffer),
        }
        Home::Fixed(i as u32)
    }

    pub fn free(&mut self, home: Home) {
        if let Home::Fixed(i) = home {
            self.fixed[i as usize] = Buffer::Free;
        }
    }

    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        if (self.arena.raw().1 as u64) < bytes {
            // The old arena goes first, so that the two never exist together.
            self.arena = Buffer::Free;
            self.arena = Buffer::Owned(Owned::zeroed(bytes)?);
        }
        Ok(())
    }

    pub fn arena_bytes(&self) -> u64 {
        self.arena.raw().1 as u64
    }

    /// Bytes of own buffers, without the arena.
    pub fn allocated_bytes(&self) -> u64 {
        let owned = self.fixed.iter().map(|b| if let Buffer::Owned(o) = b { o.bytes as u64 } else { 0 });
        owned.sum()
    }

    fn buffer(&self, home: Home) -> &Buffer {
        match home {
            Home::Fixed(i) => &self.fixed[i as usize],
            Home::Arena => &self.arena,
            Home::Temp(i) => unreachable!("temporary {i} of a program that was not planned"),
        }
    }

    /// The first byte of a view that is known to lie inside its buffer.
    fn start(&self, v: &View) -> *const u8 {
        let (p, len) = self.buffer(v.home).raw();
        let (offset, span) = (v.offset as usize, v.span() as usize);
        assert!(
            offset <= len && span <= len - offset,
            "a view of {span} bytes at {offset} in a buffer of {len}"
        );
        // SAFETY: inside the buffer by the assertion.
        unsafe { p.add(offset) }
    }

    /// The bytes of a view, from its first to its last element. Not for views that a running call writes.
    pub fn bytes(&self, v: &View) -> &[u8] {
        // SAFETY: `start` has checked the span; written views are reached through `rows_mut` alone.
        unsafe { std::slice::from_raw_parts(self.start(v), v.span() as usize) }
    }

    /// The bytes of a dense view, to be written by the host.
    pub fn bytes_mut(&mut self, v: &View) -> &mut [u8] {
        assert!(
            v.is_dense() && matches!(self.buffer(v.home), Buffer::Owned(_)),
            "only own dense memory is written"
        );
        // SAFETY: `start` has checked the span, and `&mut self` excludes running calls.
        unsafe { std::slice::from_raw_parts_mut(self.start(v).cast_mut(), v.span() as usize) }
    }

    fn pointer<T>(&self, v: &View, dtype: TypeId) -> *const T {
        assert_eq!(v.dtype, dtype, "operand type");
        let p = self.start(v).cast::<T>();
        assert!(p.is_aligned(), "operand at {p:p} is not aligned");
        p
    }

    /// An operand that is read.
    pub fn rows<T: Element>(&self, v: &View) -> Rows<'_, T> {
        Rows { p: self.pointer(v, T::TYPE), n: v.rows, cols: v.cols, stride: v.stride, life: PhantomData }
    }

    /// An operand that is written. Kernels alone may call this, inside `exec`, which holds the backend exclusively.
    pub fn rows_mut<T: Element>(&self, v: &View) -> RowsMut<'_, T> {
        assert!(matches!(self.buffer(v.home), Buffer::Owned(_)), "a foreign buffer is read-only");
        let p = self.pointer::<T>(v, T::TYPE).cast_mut();
        RowsMut { p, n: v.rows, cols: v.cols, stride: v.stride, life: PhantomData }
    }
}

/// An element type of plain matrices.
pub trait Element: Copy + Send + Sync {
    /// Its number among the ggml types.
    const TYPE: TypeId;
}
impl Element for f32 {
    const TYPE: TypeId = TypeId::F32;
}
impl Element for f64 {
    const TYPE: TypeId = TypeId::F64;
}
/// Codes, which are counted from 0.
impl Element for u8 {
    const TYPE: TypeId = TypeId::I8;
}
impl Element for u32 {
    const TYPE: TypeId = TypeId::I32;
}

/// A matrix operand that is read.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    p: *const T,
    n: usize,
    cols: usize,
    stride: usize,
    life: PhantomData<&'a T>,
}

// SAFETY: a shared slice in all but name.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Send for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Elements in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.n, "row {i} of {}", self.n);
        // SAFETY: Memory::pointer has checked that the whole view lies in its buffer.
        unsafe { std::slice::from_raw_parts(self.p.add(i * self.stride), self.cols) }
    }

    /// Rows `first .. first + n` of an operand without gaps, as one slice.
    pub fn dense(&self, first: usize, n: usize) -> &'a [T] {
        assert!(self.stride == self.cols && first + n <= self.n, "rows {first}..{} of {}", first + n, self.n);
        // SAFETY: as in `row`; the rows follow each other.
        unsafe { std::slice::from_raw_parts(self.p.add(first * self.stride), n * self.cols) }
    }

    /// Rows `first .. first + n` as they lie in memory, and the distance of two rows.
    pub fn from(&self, first: usize, n: usize) -> (&'a [T], usize) {
        assert!(first + n <= self.n, "rows {first}..{} of {}", first + n, self.n);
        let len = if n == 0 { 0 } else { (n - 1) * self.stride + self.cols };
        // SAFETY: as in `row`; the last row ends the slice.
        (unsafe { std::slice::from_raw_parts(self.p.add(first * self.stride), len) }, self.stride)
    }

    /// The only row of a vector operand.
    pub fn vector(&self) -> &'a [T] {
        assert_eq!(self.n, 1);
        self.row(0)
    }

    /// All elements of a one-column operand without gaps.
    pub fn column(&self) -> &'a [T] {
        assert!(self.cols == 1 && (self.stride == 1 || self.n <= 1));
        // SAFETY: as in `row`; the rows follow each other.
        unsafe { std::slice::from_raw_parts(self.p, self.n) }
    }
}

/// A matrix operand that is written, by several workers at once, each its own rows or rectangle.
#[derive(Clone, Copy)]
pub struct RowsMut<'a, T> {
    p: *mut T,
    n: usize,
    cols: usize,
    stride: usize,
    life: PhantomData<&'a mut T>,
}

// SAFETY: access to elements goes through the unsafe `part`, whose callers keep parts disjoint.
unsafe impl<T: Send> Sync for RowsMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}

impl<'a, T> RowsMut<'a, T> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Elements in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// A rectangle.
    ///
    /// # Safety
    /// No element of it is reachable through another part that is alive.
    pub unsafe fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Part<'a, T> {
        assert!(
            rows.end <= self.n && cols.end <= self.cols && rows.start <= rows.end && cols.start <= cols.end
        );
        // SAFETY: inside the view by the assertion, and the view inside its buffer.
        let p = unsafe { self.p.add(rows.start * self.stride + cols.start) };
        Part { p, n: rows.len(), cols: cols.len(), stride: self.stride, life: PhantomData }
    }
}

/// Rows that one task owns.
pub struct Part<'a, T> {
    p: *mut T,
    n: usize,
    cols: usize,
    stride: usize,
    life: PhantomData<&'a mut T>,
}

impl<T> Part<'_, T> {
    /// Row `i` of the part.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.n, "row {i} of {}", self.n);
        // SAFETY: the part owns its rectangle, and `&mut self` gives out one row at a time.
        unsafe { std::slice::from_raw_parts_mut(self.p.add(i * self.stride), self.cols) }
    }

    /// The first element and the distance of rows, for kernels that address tiles themselves.
    pub fn raw(&mut self) -> (*mut T, usize) {
        (self.p, self.stride)
    }
}
