//! RMSNorm and LayerNorm.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// Norms of rows. `x`, `y`, `dy`, `dx` are `[rows, dim]`, `w` and `b` `[dim]`, all of one type; the rows' `mean` and
/// `rstd`, `[rows]`, and gradients of parameters, `[dim]`, are f32.
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

    /// `y = (x - mean) * rstd * w + b`, `rstd = 1 / sqrt(var(x) + eps)` (Ba et al., eq. 3).
    fn layer_norm(
        &self,
        x: Slice<'_, Self::Buf>,
        parameters: LayerNorm<'_, Self::Buf>,
        y: SliceMut<'_, Self::Buf>,
        mean: SliceMut<'_, Self::Buf>,
        rstd: SliceMut<'_, Self::Buf>,
    );

    /// `dx += rstd * (w dy - mean(w dy) - n mean(w dy n))`, with `n = (x - mean) * rstd`.
    fn layer_norm_input_gradient(
        &self,
        x: Slice<'_, Self::Buf>,
        w: Slice<'_, Self::Buf>,
        rows: RowStats<'_, Self::Buf>,
        dy: Slice<'_, Self::Buf>,
        dx: SliceMut<'_, Self::Buf>,
    );

    /// `dw = sum over rows of dy * (x - mean) * rstd`, added to `dw` when `accumulate`. The bias's gradient is
    /// [`crate::device::Pointwise::sum_rows`].
    fn layer_norm_weight_gradient(
        &self,
        x: Slice<'_, Self::Buf>,
        rows: RowStats<'_, Self::Buf>,
        dy: Slice<'_, Self::Buf>,
        dw: SliceMut<'_, Self::Buf>,
        accumulate: bool,
    );
}

/// The parameters of a LayerNorm.
#[derive(Debug)]
pub struct LayerNorm<'a, B> {
    /// Weight.
    pub w: Slice<'a, B>,
    /// Bias.
    pub b: Slice<'a, B>,
    /// Inside the root.
    pub eps: f32,
}

/// What the backward of a LayerNorm reads of each row.
#[derive(Debug)]
pub struct RowStats<'a, B> {
    /// Mean.
    pub mean: Slice<'a, B>,
    /// One over the standard deviation.
    pub rstd: Slice<'a, B>,
}

impl<B> Clone for RowStats<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for RowStats<'_, B> {}
