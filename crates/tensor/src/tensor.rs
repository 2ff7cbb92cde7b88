//! A tensor: shape, placement, and a buffer that knows its dtype and category.

use crate::device::{Buffer, Memory};
use crate::{Category, DType, Error, Lent, Slice, SliceMut};
use memwall_layout::Placements;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Dims of a tensor, outermost first: one or two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [usize; 2],
    rank: u8,
}

impl Shape {
    /// A vector.
    pub const fn vector(n: usize) -> Self {
        Self { dims: [n, 1], rank: 1 }
    }

    /// A row-major matrix.
    pub const fn matrix(rows: usize, cols: usize) -> Self {
        Self { dims: [rows, cols], rank: 2 }
    }

    /// From the dims of a parameter; `None` for other than one or two.
    pub fn from_dims(dims: &[usize]) -> Option<Self> {
        match *dims {
            [n] => Some(Self::vector(n)),
            [r, c] => Some(Self::matrix(r, c)),
            _ => None,
        }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.dims[0] * self.dims[1]
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dims.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// As many elements, in rows of `cols`.
    fn in_rows_of(self, cols: usize) -> Self {
        assert_eq!(self.len() % cols, 0, "{self:?} in rows of {cols}");
        Self::matrix(self.len() / cols, cols)
    }

    /// First dim.
    pub const fn rows(&self) -> usize {
        self.dims[0]
    }

    /// Second dim; 1 for a vector.
    pub const fn cols(&self) -> usize {
        self.dims[1]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// A tensor that owns its buffer, but for what of it is [`Lent`].
#[derive(Debug)]
pub struct Tensor<D: Memory> {
    buf: Held<D::Buf>,
    /// First element in the buffer.
    start: usize,
    shape: Shape,
    placements: Placements,
}

/// A tensor's buffer. Only of what may be lent it is counted who has it: tensors come and go by the hundred in a step.
#[derive(Debug)]
enum Held<B> {
    Own(B),
    Counted(Arc<B>),
}

impl<B> Deref for Held<B> {
    type Target = B;

    fn deref(&self) -> &B {
        match self {
            Held::Own(buf) => buf,
            Held::Counted(buf) => buf,
        }
    }
}

/// A tensor to read: all of one, or a part of a flat buffer.
#[derive(Debug)]
pub struct View<'a, D: Memory> {
    /// The elements.
    pub slice: Slice<'a, D::Buf>,
    /// Dims.
    pub shape: Shape,
    /// Where its parts are.
    pub placements: Placements,
}

impl<D: Memory> Clone for View<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Memory> Copy for View<'_, D> {}

/// A tensor to write.
#[derive(Debug)]
pub struct ViewMut<'a, D: Memory> {
    /// The elements.
    pub slice: SliceMut<'a, D::Buf>,
    /// Dims.
    pub shape: Shape,
    /// Where its parts are.
    pub placements: Placements,
}

impl<D: Memory> Tensor<D> {
    /// A new tensor whose contents are unspecified.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &D,
        shape: Shape,
        dtype: DType,
        placements: Placements,
        category: Category,
    ) -> Result<Self, Error> {
        let buf = Held::Own(device.alloc(shape.len(), dtype, category)?);
        Ok(Self { buf, start: 0, shape, placements })
    }

    /// The same, of which elements can be lent.
    ///
    /// # Errors
    /// Out of memory.
    pub fn lendable(
        device: &D,
        shape: Shape,
        dtype: DType,
        placements: Placements,
        category: Category,
    ) -> Result<Self, Error> {
        let buf = Held::Counted(Arc::new(device.alloc(shape.len(), dtype, category)?));
        Ok(Self { buf, start: 0, shape, placements })
    }

    /// The whole, to read.
    pub fn view(&self) -> View<'_, D> {
        let slice = Slice::all(&*self.buf).part(self.start, self.shape.len());
        View { slice, shape: self.shape, placements: self.placements }
    }

    /// The whole, to write.
    ///
    /// # Panics
    /// When something of its buffer is lent: a fault of the calling program, which has to take it back before.
    pub fn view_mut(&mut self) -> ViewMut<'_, D> {
        let buf = match &mut self.buf {
            Held::Own(buf) => buf,
            Held::Counted(buf) => Arc::get_mut(buf).expect("what is lent to be read is not written to"),
        };
        let slice = SliceMut::all(buf).part(self.start, self.shape.len());
        ViewMut { slice, shape: self.shape, placements: self.placements }
    }

    /// Lends elements to be read by another thread.
    ///
    /// # Panics
    /// When the range leaves the tensor, or the tensor is none of [`Tensor::lendable`]: a fault of the calling program.
    pub fn lend(&self, elements: Range<usize>) -> Lent<D::Buf> {
        let Range { start, end } = elements;
        assert!(start <= end && end <= self.shape.len(), "{start}..{end} of {:?}", self.shape);
        let Held::Counted(buf) = &self.buf else { panic!("nobody counts who has this tensor") };
        Lent { buf: buf.clone(), start: self.start + start, len: end - start }
    }

    /// Other elements of the same buffer: from `start` on, in this shape. The rest is kept, and comes back with another window.
    ///
    /// # Panics
    /// When the buffer ends before: a fault of the calling program.
    #[must_use]
    pub fn window(self, start: usize, shape: Shape) -> Self {
        let len = self.buf.len();
        assert!(start + shape.len() <= len, "{shape:?} at {start} of a buffer of {len}");
        Self { start, shape, ..self }
    }

    /// The same elements, placed otherwise: for whoever has changed where its parts are, as a collective does.
    #[must_use]
    pub fn placed(self, placements: Placements) -> Self {
        Self { placements, ..self }
    }

    /// As [`View::in_rows_of`].
    ///
    /// # Panics
    /// As [`View::in_rows_of`].
    #[must_use]
    pub fn in_rows_of(self, cols: usize) -> Self {
        let placements = self.placements.in_rows_of(self.shape.cols(), cols);
        Self { shape: self.shape.in_rows_of(cols), placements, ..self }
    }

    /// Dims.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.buf.dtype()
    }

    /// Where its parts are.
    pub fn placements(&self) -> Placements {
        self.placements
    }
}

impl<'a, D: Memory> View<'a, D> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.slice.dtype()
    }

    /// The same elements as rows of `cols`: the heads of each token, say, sharded as they were.
    ///
    /// # Panics
    /// When they are not a whole number of rows: a fault of the calling program.
    #[must_use]
    pub fn in_rows_of(self, cols: usize) -> Self {
        let placements = self.placements.in_rows_of(self.shape.cols(), cols);
        Self { shape: self.shape.in_rows_of(cols), placements, ..self }
    }

    /// Rows `start .. start + rows`.
    #[must_use]
    pub fn rows(self, start: usize, rows: usize) -> Self {
        let cols = self.shape.cols();
        let shape = Shape { dims: [rows, cols], rank: self.shape.rank };
        Self { slice: self.slice.part(start * cols, rows * cols), shape, placements: self.placements }
    }
}

impl<'a, D: Memory> ViewMut<'a, D> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.slice.dtype()
    }

    /// As [`View::in_rows_of`].
    ///
    /// # Panics
    /// As [`View::in_rows_of`].
    #[must_use]
    pub fn in_rows_of(self, cols: usize) -> Self {
        let placements = self.placements.in_rows_of(self.shape.cols(), cols);
        Self { shape: self.shape.in_rows_of(cols), placements, ..self }
    }

    /// Rows `start .. start + rows`.
    #[must_use]
    pub fn rows(self, start: usize, rows: usize) -> Self {
        let cols = self.shape.cols();
        let shape = Shape { dims: [rows, cols], rank: self.shape.rank };
        Self { slice: self.slice.part(start * cols, rows * cols), shape, placements: self.placements }
    }

    /// The same, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, D> {
        ViewMut { slice: self.slice.reborrow(), shape: self.shape, placements: self.placements }
    }
}
