//! Norms, lookups, the rotary embedding and elementwise operations.

use crate::device::Memory;
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

/// Norms. `x`, `y`, `dy`, `dx` are `[rows, dim]`, `w` and `dw` `[dim]`, `rstd` `[rows]`.
pub trait Norms: Memory {
    /// `y = x * rstd * w`, `rstd = 1 / sqrt(mean(x^2) + eps)` (Zhang and Sennrich, eq. 4).
    fn rms_norm(
        &self,
        x: Slice<'_, Self::Buf>,
        w: Slice<'_, Self::Buf>,
        eps: f32,
        y: SliceMut<'_, Self::Buf>,
        rstd: SliceMut<'_, Self::Buf>,
    );

    /// `dx += rstd * (w dy - x rstd^2 mean(w dy x))`.
    fn rms_norm_input_gradient(
        &self,
        x: Slice<'_, Self::Buf>,
        w: Slice<'_, Self::Buf>,
        rstd: Slice<'_, Self::Buf>,
        dy: Slice<'_, Self::Buf>,
        dx: SliceMut<'_, Self::Buf>,
    );

    /// `dw = sum over rows of dy * x * rstd`, added to `dw` when `accumulate`.
    fn rms_norm_weight_gradient(
        &self,
        x: Slice<'_, Self::Buf>,
        rstd: Slice<'_, Self::Buf>,
        dy: Slice<'_, Self::Buf>,
        dw: SliceMut<'_, Self::Buf>,
        accumulate: bool,
    );
}

/// Lookups and elementwise operations.
pub trait Pointwise: Memory {
    /// `out[i] = table[ids[i]]`, with `table` `[vocabulary, dim]`.
    fn embedding(
        &self,
        ids: Slice<'_, Self::Buf>,
        table: Slice<'_, Self::Buf>,
        dim: usize,
        out: SliceMut<'_, Self::Buf>,
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
    /// `[positions, head_dim]`: the cosines of a position, then its sines. `inverse` turns back, which is
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
}
