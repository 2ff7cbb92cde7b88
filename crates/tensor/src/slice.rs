//! Borrowed parts of a device's buffer: what device operations take.

use crate::device::Buffer;
use crate::{DType, Float, bf16};
use std::sync::Arc;

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

    /// Waits for all that was issued, then copies all elements to the host.
    ///
    /// # Panics
    /// When there is room for other than their bytes.
    pub fn read(self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.len * self.dtype().bytes(), "bytes to read");
        self.buf.read(self.start, bytes);
    }

    /// The same for floating-point elements, as f32.
    ///
    /// # Panics
    /// When there is room for more or fewer.
    pub fn read_floats(self, out: &mut [f32]) {
        if self.dtype() != DType::BF16 {
            return self.read(bytemuck::cast_slice_mut(out));
        }
        let mut low = vec![bf16::ZERO; self.len];
        self.read(bytemuck::cast_slice_mut(&mut low));
        assert_eq!(low.len(), out.len(), "elements to read");
        out.iter_mut().zip(low).for_each(|(x, low)| *x = low.wide());
    }
}

/// Elements of a tensor that another thread may read while the program goes on. Until it is dropped nobody can write to the
/// tensor's buffer, and its bytes are not given back.
#[derive(Debug)]
pub struct Lent<B> {
    pub(crate) buf: Arc<B>,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl<B: Buffer> Lent<B> {
    /// The elements.
    pub fn slice(&self) -> Slice<'_, B> {
        Slice { buf: &self.buf, start: self.start, len: self.len }
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
