//! RMSNorm and LayerNorm.

use super::{activation, require, require_types};
use crate::device::{LayerNorm, Norms, RowStats};
use crate::{DType, Error, Shape, Tensor, View, ViewMut};
use memwall_layout::{PlacementError, rules};

/// The parameters of a norm.
#[derive(Debug)]
pub struct NormWeights<'a, D: Norms> {
    /// Weight, `[dim]`.
    pub w: View<'a, D>,
    /// Bias, `[dim]`: with one it is a LayerNorm, without an RMSNorm.
    pub b: Option<View<'a, D>>,
    /// Inside the root.
    pub eps: f64,
}

/// What a norm yields.
#[derive(Debug)]
pub struct Normed<D: Norms> {
    /// The normed rows.
    pub y: Tensor<D>,
    /// Each row's mean, for a LayerNorm.
    pub mean: Option<Tensor<D>>,
    /// One over each row's root mean square, or standard deviation.
    pub rstd: Tensor<D>,
}

impl<D: Norms> Normed<D> {
    fn rows(&self) -> Option<RowStats<'_, D::Buf>> {
        let mean = self.mean.as_ref()?;
        Some(RowStats { mean: mean.view().slice, rstd: self.rstd.view().slice })
    }

    /// The means are placed as the rest is.
    fn check_mean(&self, operation: &'static str) -> Result<(), PlacementError> {
        let Some(mean) = &self.mean else { return Ok(()) };
        rules::accumulate(operation, ("mean", &mean.placements()), &self.rstd.placements())
    }

    fn has_rows(&self, rows: usize) -> bool {
        let rows = Shape::vector(rows);
        self.rstd.shape() == rows && self.mean.as_ref().is_none_or(|m| m.shape() == rows)
    }
}

/// Norm of each row of `x [tokens, dim]`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn norm<D: Norms>(device: &D, x: View<'_, D>, weights: NormWeights<'_, D>) -> Result<Normed<D>, Error> {
    let NormWeights { w, b, eps } = weights;
    let placements = rules::norm(&x.placements, &w.placements, b.as_ref().map(|b| &b.placements))?;
    let like = Shape::vector(x.shape.cols());
    let fits = !like.is_empty() && w.shape == like && b.is_none_or(|b| b.shape == like);
    require(fits, "norm", &[x.shape, w.shape, b.map_or(like, |b| b.shape)])?;
    require_types("norm", &[x.dtype(), w.dtype(), b.map_or(w.dtype(), |b| b.dtype())], &[])?;
    let mut y = activation(device, "norm", x.dtype(), x.shape, placements)?;
    let row = || activation(device, "norm", DType::F32, Shape::vector(x.shape.rows()), placements);
    let (mut mean, mut rstd) = (b.map(|_| row()).transpose()?, row()?);
    let (out, eps) = (y.view_mut().slice, eps as f32);
    match (b, &mut mean) {
        (Some(b), Some(mean)) => {
            let parameters = LayerNorm { w: w.slice, b: b.slice, eps };
            device.layer_norm(x.slice, parameters, out, mean.view_mut().slice, rstd.view_mut().slice);
        }
        _ => device.rms_norm(x.slice, w.slice, eps, out, rstd.view_mut().slice),
    }
    Ok(Normed { y, mean, rstd })
}

/// Adds the gradient for the norm's input to `dx`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn norm_input_gradient<D: Norms>(
    device: &D,
    x: View<'_, D>,
    w: View<'_, D>,
    normed: &Normed<D>,
    dy: View<'_, D>,
    dx: ViewMut<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "norm backward for the input";
    let rstd = normed.rstd.view();
    let like_rows =
        [("x", &x.placements), ("rstd", &rstd.placements), ("dy", &dy.placements), ("dx", &dx.placements)];
    rules::norm_input_gradient(&w.placements, like_rows)?;
    normed.check_mean(NAME)?;
    let fits = w.shape == Shape::vector(x.shape.cols())
        && normed.has_rows(x.shape.rows())
        && dy.shape == x.shape
        && dx.shape == x.shape;
    require(fits, NAME, &[x.shape, w.shape, rstd.shape, dy.shape, dx.shape])?;
    require_types(NAME, &[x.dtype(), w.dtype(), dy.dtype(), dx.dtype()], &[(rstd.dtype(), DType::F32)])?;
    match normed.rows() {
        Some(rows) => device.layer_norm_input_gradient(x.slice, w.slice, rows, dy.slice, dx.slice),
        None => device.rms_norm_input_gradient(x.slice, w.slice, rstd.slice, dy.slice, dx.slice),
    }
    Ok(())
}

/// The gradient for the norm's weight, added to `dw` when `accumulate`. A bias's is [`super::bias_gradient`].
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn norm_weight_gradient<D: Norms>(
    device: &D,
    x: View<'_, D>,
    normed: &Normed<D>,
    dy: View<'_, D>,
    dw: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "norm backward for the weight";
    let rstd = normed.rstd.view();
    let like_rows = [("x", &x.placements), ("rstd", &rstd.placements), ("dy", &dy.placements)];
    let placements = rules::norm_weight_gradient(like_rows)?;
    normed.check_mean(NAME)?;
    rules::accumulate(NAME, ("dw", &dw.placements), &placements)?;
    let fits =
        dw.shape == Shape::vector(x.shape.cols()) && normed.has_rows(x.shape.rows()) && dy.shape == x.shape;
    require(fits, NAME, &[x.shape, rstd.shape, dy.shape, dw.shape])?;
    let exact = [(rstd.dtype(), DType::F32), (dw.dtype(), DType::F32)];
    require_types(NAME, &[x.dtype(), dy.dtype()], &exact)?;
    match normed.rows() {
        Some(rows) => device.layer_norm_weight_gradient(x.slice, rows, dy.slice, dw.slice, accumulate),
        None => device.rms_norm_weight_gradient(x.slice, rstd.slice, dy.slice, dw.slice, accumulate),
    }
    Ok(())
}
