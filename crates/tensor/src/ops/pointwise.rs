//! Norms, lookups, rotary embedding, activations.

use super::{activation, require};
use crate::device::{Norms, Pointwise, RopeDims};
use crate::{DType, Error, Shape, Tensor, View, ViewMut};
use memwall_layout::rules;

/// What a norm yields.
#[derive(Debug)]
pub struct Normed<D: Norms> {
    /// The normed rows.
    pub y: Tensor<D>,
    /// One over each row's root mean square.
    pub rstd: Tensor<D>,
}

/// RMSNorm of each row of `x [tokens, dim]` with weight `w [dim]`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn rms_norm<D: Norms>(device: &D, x: View<'_, D>, w: View<'_, D>, eps: f64) -> Result<Normed<D>, Error> {
    require(w.shape == Shape::vector(x.shape.cols()), "rms_norm", &[x.shape, w.shape])?;
    let placements = rules::rowwise("rms_norm", &x.placements, &w.placements)?;
    let mut y = activation(device, x.shape, placements)?;
    let mut rstd = activation(device, Shape::vector(x.shape.rows()), placements)?;
    device.rms_norm(x.slice, w.slice, eps as f32, y.view_mut().slice, rstd.view_mut().slice);
    Ok(Normed { y, rstd })
}

/// Adds the gradient for the norm's input to `dx`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn rms_norm_input_gradient<D: Norms>(
    device: &D,
    x: View<'_, D>,
    w: View<'_, D>,
    rstd: View<'_, D>,
    dy: View<'_, D>,
    dx: ViewMut<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "rms_norm backward for the input";
    let fits = w.shape == Shape::vector(x.shape.cols())
        && rstd.shape == Shape::vector(x.shape.rows())
        && dy.shape == x.shape
        && dx.shape == x.shape;
    require(fits, NAME, &[x.shape, w.shape, rstd.shape, dy.shape, dx.shape])?;
    let placements = rules::rowwise(NAME, &dy.placements, &w.placements)?;
    rules::accumulate(NAME, &x.placements, &placements)?;
    rules::accumulate(NAME, &dx.placements, &placements)?;
    device.rms_norm_input_gradient(x.slice, w.slice, rstd.slice, dy.slice, dx.slice);
    Ok(())
}

/// The gradient for the norm's weight, added to `dw` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn rms_norm_weight_gradient<D: Norms>(
    device: &D,
    x: View<'_, D>,
    rstd: View<'_, D>,
    dy: View<'_, D>,
    dw: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "rms_norm backward for the weight";
    let fits = dw.shape == Shape::vector(x.shape.cols())
        && rstd.shape == Shape::vector(x.shape.rows())
        && dy.shape == x.shape;
    require(fits, NAME, &[x.shape, rstd.shape, dy.shape, dw.shape])?;
    let placements = rules::rowwise_weight_gradient(NAME, &dy.placements, &x.placements)?;
    rules::accumulate(NAME, &dw.placements, &placements)?;
    device.rms_norm_weight_gradient(x.slice, rstd.slice, dy.slice, dw.slice, accumulate);
    Ok(())
}

/// Rows of `table [vocabulary, dim]` by token ids `ids [tokens]`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn embedding<D: Pointwise>(device: &D, ids: View<'_, D>, table: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::lookup(&ids.placements, &table.placements)?;
    let dim = table.shape.cols();
    let mut out = activation(device, Shape::matrix(ids.shape.len(), dim), placements)?;
    device.embedding(ids.slice, table.slice, dim, out.view_mut().slice);
    Ok(out)
}

/// The gradient for the table, added to `dtable` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn embedding_gradient<D: Pointwise>(
    device: &D,
    ids: View<'_, D>,
    dy: View<'_, D>,
    dtable: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "embedding backward";
    let dim = dtable.shape.cols();
    require(dy.shape == Shape::matrix(ids.shape.len(), dim), NAME, &[ids.shape, dy.shape, dtable.shape])?;
    let placements = rules::rowwise_weight_gradient(NAME, &dy.placements, &ids.placements)?;
    rules::accumulate(NAME, &dtable.placements, &placements)?;
    device.embedding_gradient(ids.slice, dy.slice, dim, dtable.slice, accumulate);
    Ok(())
}

/// Turns the heads of `x [tokens, heads x head_dim]` by their positions' angles; back when `inverse`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn rope<D: Pointwise>(
    device: &D,
    x: ViewMut<'_, D>,
    positions: View<'_, D>,
    table: View<'_, D>,
    inverse: bool,
) -> Result<(), Error> {
    let head_dim = table.shape.cols();
    let fits = head_dim.is_multiple_of(2)
        && x.shape.cols().checked_rem(head_dim) == Some(0)
        && positions.shape == Shape::vector(x.shape.rows());
    require(fits, "rope", &[x.shape, positions.shape, table.shape])?;
    // Linear and elementwise in x: any placement of x is kept.
    let dims = RopeDims { rows: x.shape.rows(), heads: x.shape.cols() / head_dim, head_dim };
    device.rope(dims, x.slice, positions.slice, table.slice, inverse);
    Ok(())
}

/// `silu(gate) * up`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn swiglu<D: Pointwise>(device: &D, gate: View<'_, D>, up: View<'_, D>) -> Result<Tensor<D>, Error> {
    require(gate.shape == up.shape, "swiglu", &[gate.shape, up.shape])?;
    let placements = rules::elementwise("swiglu", [&gate.placements, &up.placements])?;
    let mut out = activation(device, gate.shape, placements)?;
    device.swiglu(gate.slice, up.slice, out.view_mut().slice);
    Ok(out)
}

/// Replaces `gate` and `up` by their gradients.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn swiglu_backward<D: Pointwise>(
    device: &D,
    gate: ViewMut<'_, D>,
    up: ViewMut<'_, D>,
    dout: View<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "swiglu backward";
    require(gate.shape == up.shape && gate.shape == dout.shape, NAME, &[gate.shape, up.shape, dout.shape])?;
    rules::elementwise(NAME, [&gate.placements, &up.placements, &dout.placements])?;
    device.swiglu_backward(gate.slice, up.slice, dout.slice);
    Ok(())
}

/// A copy of `x` as a new activation.
///
/// # Errors
/// Out of memory.
pub fn copy_like<D: Pointwise>(device: &D, x: View<'_, D>) -> Result<Tensor<D>, Error> {
    let mut out = Tensor::new(device, x.shape, DType::F32, x.placements, crate::Category::Activations)?;
    device.copy(x.slice, out.view_mut().slice);
    Ok(out)
}
