//! Lookups, the rotary embedding, and elementwise operations.

use crate::device::{Dropout, Memory};
use crate::{Slice, SliceMut};

/// Sizes of a rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeDims {
    /// Tokens.
    pub rows: usize,
    /// Heads a token.
    pub heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
}

/// Some columns of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Columns {
    /// Columns of the whole matrix.
    pub of: usize,
    /// The first of them.
    pub start: usize,
}

/// Lookups and elementwise operations. Activations and weights are f32 or bf16, one type an operation; gradients of
/// parameters are f32.
pub trait Pointwise: Memory {
    /// `out[i] = table[ids[i]]`, with `table` `[vocabulary, dim]`; added to `out` when `accumulate`.
    fn embedding(
        &self,
        ids: Slice<'_, Self::Buf>,
        table: Slice<'_, Self::Buf>,
        dim: usize,
        out: SliceMut<'_, Self::Buf>,
        accumulate: bool,
    );

    /// `dtable[ids[i]] += dy[i]`, row by row in order; `dtable` is zeroed first unless `accumulate`.
    fn embedding_gradient(
        &self,
        ids: Slice<'_, Self::Buf>,
        dy: Slice<'_, Self::Buf>,
        dim: usize,
        dtable: SliceMut<'_, Self::Buf>,
        accumulate: bool,
    );

    /// Turns the pair `(i, i + head_dim / 2)` of every head of `x` by its angle, in place. `table` is
    /// `[positions, head_dim]`, f32: the cosines of a position, then its sines. `inverse` turns back, which is
    /// also the backward.
    fn rope(
        &self,
        dims: RopeDims,
        x: SliceMut<'_, Self::Buf>,
        positions: Slice<'_, Self::Buf>,
        table: Slice<'_, Self::Buf>,
        inverse: bool,
    );

    /// `out = silu(gate) * up` (Shazeer, "GLU variants", eq. 6).
    fn swiglu(&self, gate: Slice<'_, Self::Buf>, up: Slice<'_, Self::Buf>, out: SliceMut<'_, Self::Buf>);

    /// Replaces `gate` and `up` by their gradients.
    fn swiglu_backward(
        &self,
        gate: SliceMut<'_, Self::Buf>,
        up: SliceMut<'_, Self::Buf>,
        dout: Slice<'_, Self::Buf>,
    );

    /// `out = gelu(x)`, by the hyperbolic tangent (Hendrycks and Gimpel, section 2).
    fn gelu(&self, x: Slice<'_, Self::Buf>, out: SliceMut<'_, Self::Buf>);

    /// Replaces `x` by its gradient.
    fn gelu_backward(&self, x: SliceMut<'_, Self::Buf>, dout: Slice<'_, Self::Buf>);

    /// `x += y`.
    fn add(&self, x: SliceMut<'_, Self::Buf>, y: Slice<'_, Self::Buf>);

    /// `out = sum over rows of x`, row by row in order; added to `out` when `accumulate`.
    fn sum_rows(&self, x: Slice<'_, Self::Buf>, out: SliceMut<'_, Self::Buf>, accumulate: bool);

    /// Copies `cols` columns of `src`, from `from` on, to those of `dst` from `to` on.
    fn copy_columns(
        &self,
        src: Slice<'_, Self::Buf>,
        from: Columns,
        dst: SliceMut<'_, Self::Buf>,
        to: Columns,
        cols: usize,
    );

    /// Sets a share of `x` to zero and lets the rest grow, in place; `x` has equally many elements a sequence.
    /// Applied to a gradient it is its own backward.
    fn dropout(&self, x: SliceMut<'_, Self::Buf>, dropout: Dropout<'_, Self::Buf>);
}
