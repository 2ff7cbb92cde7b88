//! The linear layer `y = x w^T` and its gradients.

use super::{activation, require};
use crate::device::{Linear, MatmulDims, MatmulLayout};
use crate::{Error, Shape, Tensor, View, ViewMut};
use memwall_layout::rules;

/// `y = x w^T`: `x [tokens, in]`, `w [out, in]`, `y [tokens, out]`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn linear<D: Linear>(device: &D, x: View<'_, D>, w: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::linear(&x.placements, &w.placements)?;
    let mut y = activation(device, Shape::matrix(x.shape.rows(), w.shape.rows()), placements)?;
    linear_into(device, x, w, y.view_mut(), false)?;
    Ok(y)
}

/// `y = x w^T`, added to `y` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn linear_into<D: Linear>(
    device: &D,
    x: View<'_, D>,
    w: View<'_, D>,
    y: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    let placements = rules::linear(&x.placements, &w.placements)?;
    rules::accumulate("linear", &y.placements, &placements)?;
    let (m, n, k) = (x.shape.rows(), w.shape.rows(), x.shape.cols());
    let fits = w.shape.cols() == k && y.shape == Shape::matrix(m, n);
    require(fits, "linear", &[x.shape, w.shape, y.shape])?;
    device.matmul(MatmulLayout::Nt, MatmulDims { m, n, k }, x.slice, w.slice, y.slice, accumulate);
    Ok(())
}

/// `dx = dy w`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn linear_input_gradient<D: Linear>(
    device: &D,
    dy: View<'_, D>,
    w: View<'_, D>,
) -> Result<Tensor<D>, Error> {
    let placements = rules::linear_input_gradient(&dy.placements, &w.placements)?;
    let mut dx = activation(device, Shape::matrix(dy.shape.rows(), w.shape.cols()), placements)?;
    linear_input_gradient_into(device, dy, w, dx.view_mut(), false)?;
    Ok(dx)
}

/// `dx = dy w`, added to `dx` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn linear_input_gradient_into<D: Linear>(
    device: &D,
    dy: View<'_, D>,
    w: View<'_, D>,
    dx: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "linear backward for the input";
    let placements = rules::linear_input_gradient(&dy.placements, &w.placements)?;
    rules::accumulate(NAME, &dx.placements, &placements)?;
    let (m, n, k) = (dy.shape.rows(), w.shape.cols(), dy.shape.cols());
    let fits = w.shape.rows() == k && dx.shape == Shape::matrix(m, n);
    require(fits, NAME, &[dy.shape, w.shape, dx.shape])?;
    device.matmul(MatmulLayout::Nn, MatmulDims { m, n, k }, dy.slice, w.slice, dx.slice, accumulate);
    Ok(())
}

/// `dw = dy^T x`, added to `dw` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn linear_weight_gradient<D: Linear>(
    device: &D,
    dy: View<'_, D>,
    x: View<'_, D>,
    dw: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    let placements = rules::linear_weight_gradient(&dy.placements, &x.placements)?;
    rules::accumulate("linear backward for the weight", &dw.placements, &placements)?;
    let (m, n, k) = (dy.shape.cols(), x.shape.cols(), dy.shape.rows());
    let fits = x.shape.rows() == k && dw.shape == Shape::matrix(m, n);
    require(fits, "linear backward for the weight", &[dy.shape, x.shape, dw.shape])?;
    device.matmul(MatmulLayout::Tn, MatmulDims { m, n, k }, dy.slice, x.slice, dw.slice, accumulate);
    Ok(())
}
