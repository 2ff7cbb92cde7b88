//! Borrowed parts of a device's buffer: what device operations take.

use crate::DType;
use crate::device::Buffer;

/// A part of a buffer to read.
#[derive(Debug)]
pub struct Slice<'a, B> {
    pub(crate) buf: &'a B,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl<B> Clone for Slice<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Slice<'_, B> {}

/// A part of a buffer to write.
#[derive(Debug)]
pub struct SliceMut<'a, B> {
    pub(crate) buf: &'a mut B,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl<'a, B: Buffer> Slice<'a, B> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.buf.dtype()
    }

    /// All of a buffer.
    pub fn all(buf: &'a B) -> Self {
        Self { start: 0, len: buf.len(), buf }
    }

    /// Elements `start .. start + len` of this slice.
    ///
    /// # Panics
    /// When the range leaves the slice: a fault of the calling program.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "{start} + {len} leaves a slice of {}", self.len);
        Self { buf: self.buf, start: self.start + start, len }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a, B: Buffer> SliceMut<'a, B> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.buf.dtype()
    }

    /// All of a buffer.
    pub fn all(buf: &'a mut B) -> Self {
        Self { start: 0, len: buf.len(), buf }
    }

    /// Elements `start .. start + len` of this slice.
    ///
    /// # Panics
    /// When the range leaves the slice: a fault of the calling program.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "{start} + {len} leaves a slice of {}", self.len);
        Self { start: self.start + start, len, buf: self.buf }
    }

    /// The same part, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> SliceMut<'_, B> {
        SliceMut { buf: self.buf, start: self.start, len: self.len }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
