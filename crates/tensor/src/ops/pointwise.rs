//! Lookups, rotary embedding, activations, sums and dropout.

use super::{activation, require};
use crate::device::{Columns, Dropout, Pointwise, RopeDims};
use crate::{Error, Shape, Tensor, View, ViewMut};
use memwall_layout::rules;

/// Rows of `table [vocabulary, dim]` by token ids `ids [tokens]`.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn embedding<D: Pointwise>(device: &D, ids: View<'_, D>, table: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::lookup(&ids.placements, &table.placements)?;
    let dim = table.shape.cols();
    let mut out = activation(device, table.dtype(), Shape::matrix(ids.shape.len(), dim), placements)?;
    device.embedding(ids.slice, table.slice, dim, out.view_mut().slice, false);
    Ok(out)
}

/// Adds rows of `table [positions, dim]` by `ids [tokens]` to `x [tokens, dim]`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn add_embedding<D: Pointwise>(
    device: &D,
    ids: View<'_, D>,
    table: View<'_, D>,
    x: ViewMut<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "embedding";
    let dim = table.shape.cols();
    require(x.shape == Shape::matrix(ids.shape.len(), dim), NAME, &[ids.shape, table.shape, x.shape])?;
    let placements = rules::lookup(&ids.placements, &table.placements)?;
    rules::accumulate(NAME, &x.placements, &placements)?;
    device.embedding(ids.slice, table.slice, dim, x.slice, true);
    Ok(())
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
    let mut out = activation(device, gate.dtype(), gate.shape, placements)?;
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

/// `gelu(x)`.
///
/// # Errors
/// Placements that do not fit; out of memory.
pub fn gelu<D: Pointwise>(device: &D, x: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::elementwise("gelu", [&x.placements])?;
    let mut out = activation(device, x.dtype(), x.shape, placements)?;
    device.gelu(x.slice, out.view_mut().slice);
    Ok(out)
}

/// Replaces `x` by its gradient.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn gelu_backward<D: Pointwise>(device: &D, x: ViewMut<'_, D>, dout: View<'_, D>) -> Result<(), Error> {
    const NAME: &str = "gelu backward";
    require(x.shape == dout.shape, NAME, &[x.shape, dout.shape])?;
    rules::elementwise(NAME, [&x.placements, &dout.placements])?;
    device.gelu_backward(x.slice, dout.slice);
    Ok(())
}

/// `x += y`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn add<D: Pointwise>(device: &D, x: ViewMut<'_, D>, y: View<'_, D>) -> Result<(), Error> {
    require(x.shape == y.shape, "add", &[x.shape, y.shape])?;
    rules::add(&x.placements, &y.placements)?;
    device.add(x.slice, y.slice);
    Ok(())
}

/// Adds the bias `b [out]` to every row of `x [tokens, out]`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn add_bias<D: Pointwise>(device: &D, x: ViewMut<'_, D>, b: View<'_, D>) -> Result<(), Error> {
    require(b.shape == Shape::vector(x.shape.cols()), "bias", &[x.shape, b.shape])?;
    rules::bias(&x.placements, &b.placements)?;
    device.add_rows(x.slice, b.slice);
    Ok(())
}

/// The gradient of a bias, the sum of the rows of `dy [tokens, out]`, added to `db` when `accumulate`.
///
/// # Errors
/// Shapes or placements that do not fit.
pub fn bias_gradient<D: Pointwise>(
    device: &D,
    dy: View<'_, D>,
    db: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    require(db.shape == Shape::vector(dy.shape.cols()), "bias backward", &[dy.shape, db.shape])?;
    let placements = rules::bias_gradient(&dy.placements)?;
    rules::accumulate("bias backward", &db.placements, &placements)?;
    device.sum_rows(dy.slice, db.slice, accumulate);
    Ok(())
}

/// Columns `start .. start + cols` of `x`, as a new activation.
///
/// # Errors
/// Columns that are not there, or are sharded; out of memory.
pub fn columns<D: Pointwise>(
    device: &D,
    x: View<'_, D>,
    start: usize,
    cols: usize,
) -> Result<Tensor<D>, Error> {
    require(start + cols <= x.shape.cols(), "columns", &[x.shape])?;
    let placements = rules::columns(&x.placements)?;
    let mut out = activation(device, x.dtype(), Shape::matrix(x.shape.rows(), cols), placements)?;
    let (from, to) = (Columns { of: x.shape.cols(), start }, Columns { of: cols, start: 0 });
    device.copy_columns(x.slice, from, out.view_mut().slice, to, cols);
    Ok(out)
}

/// Copies `x` to the columns of `out` from `start` on: the backward of [`columns`].
///
/// # Errors
/// Columns that are not there, or are sharded.
pub fn set_columns<D: Pointwise>(
    device: &D,
    x: View<'_, D>,
    out: ViewMut<'_, D>,
    start: usize,
) -> Result<(), Error> {
    let cols = x.shape.cols();
    let fits = start + cols <= out.shape.cols() && x.shape.rows() == out.shape.rows();
    require(fits, "columns", &[x.shape, out.shape])?;
    let placements = rules::columns(&x.placements)?;
    rules::accumulate("columns", &out.placements, &placements)?;
    let (from, to) = (Columns { of: cols, start: 0 }, Columns { of: out.shape.cols(), start });
    device.copy_columns(x.slice, from, out.slice, to, cols);
    Ok(())
}

/// Sets a share of `x` to zero and lets the rest grow. It is its own backward.
///
/// # Errors
/// Elements that are not equally many a sequence.
pub fn dropout<D: Pointwise>(
    device: &D,
    x: ViewMut<'_, D>,
    dropout: Dropout<'_, D::Buf>,
) -> Result<(), Error> {
    let fits = x.shape.rows().checked_rem(dropout.keys.len()) == Some(0);
    require(fits, "dropout", &[x.shape, Shape::vector(dropout.keys.len())])?;
    device.dropout(x.slice, dropout);
    Ok(())
}

/// A copy of `x` as a new activation.
///
/// # Errors
/// Out of memory.
pub fn copy_like<D: Pointwise>(device: &D, x: View<'_, D>) -> Result<Tensor<D>, Error> {
    let mut out = activation(device, x.dtype(), x.shape, x.placements)?;
    device.copy(x.slice, out.view_mut().slice);
    Ok(out)
}
