//! Lookups, rotary embedding, activations, sums and dropout.

use super::{activation, require, require_types};
use crate::device::{Columns, Dropout, Pointwise, RopeDims};
use crate::{DType, Error, Shape, Tensor, View, ViewMut};
use memwall_layout::rules;

/// Rows of `table [vocabulary, dim]` by token ids `ids [tokens]`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn embedding<D: Pointwise>(device: &D, ids: View<'_, D>, table: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::lookup(&ids.placements, &table.placements)?;
    require(!table.shape.is_empty(), "embedding", &[ids.shape, table.shape])?;
    require_types("embedding", &[table.dtype()], &[(ids.dtype(), DType::I32)])?;
    let dim = table.shape.cols();
    let shape = Shape::matrix(ids.shape.len(), dim);
    let mut out = activation(device, "embedding", table.dtype(), shape, placements)?;
    device.embedding(ids.slice, table.slice, dim, out.view_mut().slice, false);
    Ok(out)
}

/// Adds rows of `table [positions, dim]` by `ids [tokens]` to `x [tokens, dim]`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn add_embedding<D: Pointwise>(
    device: &D,
    ids: View<'_, D>,
    table: View<'_, D>,
    x: ViewMut<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "embedding";
    let placements = rules::lookup(&ids.placements, &table.placements)?;
    rules::accumulate(NAME, ("x", &x.placements), &placements)?;
    let dim = table.shape.cols();
    let fits = x.shape == Shape::matrix(ids.shape.len(), dim) && !table.shape.is_empty();
    require(fits, NAME, &[ids.shape, table.shape, x.shape])?;
    require_types(NAME, &[table.dtype(), x.dtype()], &[(ids.dtype(), DType::I32)])?;
    device.embedding(ids.slice, table.slice, dim, x.slice, true);
    Ok(())
}

/// The gradient for the table, added to `dtable` when `accumulate`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn embedding_gradient<D: Pointwise>(
    device: &D,
    ids: View<'_, D>,
    dy: View<'_, D>,
    dtable: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "embedding backward";
    let placements = rules::lookup_gradient(&dy.placements, &ids.placements)?;
    rules::accumulate(NAME, ("dtable", &dtable.placements), &placements)?;
    let dim = dtable.shape.cols();
    let fits = dy.shape == Shape::matrix(ids.shape.len(), dim) && !dtable.shape.is_empty();
    require(fits, NAME, &[ids.shape, dy.shape, dtable.shape])?;
    let exact = [(ids.dtype(), DType::I32), (dtable.dtype(), DType::F32)];
    require_types(NAME, &[dy.dtype()], &exact)?;
    device.embedding_gradient(ids.slice, dy.slice, dim, dtable.slice, accumulate);
    Ok(())
}

/// Turns the heads of `x [tokens, heads x head_dim]` by their positions' angles; back when `inverse`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn rope<D: Pointwise>(
    device: &D,
    x: ViewMut<'_, D>,
    positions: View<'_, D>,
    table: View<'_, D>,
    inverse: bool,
) -> Result<(), Error> {
    rules::rope(&x.placements, &positions.placements, &table.placements)?;
    let head_dim = table.shape.cols();
    let fits = head_dim.is_multiple_of(2)
        && x.shape.cols().checked_rem(head_dim) == Some(0)
        && positions.shape == Shape::vector(x.shape.rows());
    require(fits, "rope", &[x.shape, positions.shape, table.shape])?;
    let exact = [(positions.dtype(), DType::I32), (table.dtype(), DType::F32)];
    require_types("rope", &[x.dtype()], &exact)?;
    let dims = RopeDims { rows: x.shape.rows(), heads: x.shape.cols() / head_dim, head_dim };
    device.rope(dims, x.slice, positions.slice, table.slice, inverse);
    Ok(())
}

/// `silu(gate) * up`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn swiglu<D: Pointwise>(device: &D, gate: View<'_, D>, up: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::elementwise("swiglu", [("gate", &gate.placements), ("up", &up.placements)])?;
    require(gate.shape == up.shape, "swiglu", &[gate.shape, up.shape])?;
    require_types("swiglu", &[gate.dtype(), up.dtype()], &[])?;
    let mut out = activation(device, "swiglu", gate.dtype(), gate.shape, placements)?;
    device.swiglu(gate.slice, up.slice, out.view_mut().slice);
    Ok(out)
}

/// Replaces `gate` and `up` by their gradients.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn swiglu_backward<D: Pointwise>(
    device: &D,
    gate: ViewMut<'_, D>,
    up: ViewMut<'_, D>,
    dout: View<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "swiglu backward";
    let operands = [("gate", &gate.placements), ("up", &up.placements), ("dout", &dout.placements)];
    rules::elementwise(NAME, operands)?;
    require(gate.shape == up.shape && gate.shape == dout.shape, NAME, &[gate.shape, up.shape, dout.shape])?;
    require_types(NAME, &[gate.dtype(), up.dtype(), dout.dtype()], &[])?;
    device.swiglu_backward(gate.slice, up.slice, dout.slice);
    Ok(())
}

/// `gelu(x)`.
///
/// # Errors
/// Types or placements that do not fit; out of memory.
pub fn gelu<D: Pointwise>(device: &D, x: View<'_, D>) -> Result<Tensor<D>, Error> {
    let placements = rules::elementwise("gelu", [("x", &x.placements)])?;
    require_types("gelu", &[x.dtype()], &[])?;
    let mut out = activation(device, "gelu", x.dtype(), x.shape, placements)?;
    device.gelu(x.slice, out.view_mut().slice);
    Ok(out)
}

/// Replaces `x` by its gradient.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn gelu_backward<D: Pointwise>(device: &D, x: ViewMut<'_, D>, dout: View<'_, D>) -> Result<(), Error> {
    const NAME: &str = "gelu backward";
    rules::elementwise(NAME, [("x", &x.placements), ("dout", &dout.placements)])?;
    require(x.shape == dout.shape, NAME, &[x.shape, dout.shape])?;
    require_types(NAME, &[x.dtype(), dout.dtype()], &[])?;
    device.gelu_backward(x.slice, dout.slice);
    Ok(())
}

/// `x += y`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn add<D: Pointwise>(device: &D, x: ViewMut<'_, D>, y: View<'_, D>) -> Result<(), Error> {
    rules::add("add", [("x", &x.placements), ("y", &y.placements)])?;
    require(x.shape == y.shape, "add", &[x.shape, y.shape])?;
    require_types("add", &[x.dtype(), y.dtype()], &[])?;
    device.add(x.slice, y.slice);
    Ok(())
}

/// The gradient of a bias, the sum of the rows of `dy [tokens, out]`, added to `db` when `accumulate`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn bias_gradient<D: Pointwise>(
    device: &D,
    dy: View<'_, D>,
    db: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    let placements = rules::bias_gradient(&dy.placements)?;
    rules::accumulate("bias backward", ("db", &db.placements), &placements)?;
    require(db.shape == Shape::vector(dy.shape.cols()), "bias backward", &[dy.shape, db.shape])?;
    require_types("bias backward", &[dy.dtype()], &[(db.dtype(), DType::F32)])?;
    device.sum_rows(dy.slice, db.slice, accumulate);
    Ok(())
}

/// Whether a matrix has columns `start .. start + cols`, at least one.
fn has_columns(of: Shape, start: usize, cols: usize) -> bool {
    cols > 0 && start.checked_add(cols).is_some_and(|end| end <= of.cols())
}

/// Columns `start .. start + cols` of `x`, as a new activation.
///
/// # Errors
/// Columns that are none or not there, or are sharded; types that do not fit; out of memory.
pub fn columns<D: Pointwise>(
    device: &D,
    x: View<'_, D>,
    start: usize,
    cols: usize,
) -> Result<Tensor<D>, Error> {
    let placements = rules::columns(&x.placements)?;
    require(has_columns(x.shape, start, cols), "columns", &[x.shape])?;
    require_types("columns", &[x.dtype()], &[])?;
    let mut out = activation(device, "columns", x.dtype(), Shape::matrix(x.shape.rows(), cols), placements)?;
    let (from, to) = (Columns { of: x.shape.cols(), start }, Columns { of: cols, start: 0 });
    device.copy_columns(x.slice, from, out.view_mut().slice, to, cols);
    Ok(out)
}

/// Copies `x` to the columns of `out` from `start` on: the backward of [`columns`].
///
/// # Errors
/// Columns that are none or not there, or are sharded; types that do not fit.
pub fn set_columns<D: Pointwise>(
    device: &D,
    x: View<'_, D>,
    out: ViewMut<'_, D>,
    start: usize,
) -> Result<(), Error> {
    let placements = rules::columns(&x.placements)?;
    rules::accumulate("columns", ("out", &out.placements), &placements)?;
    let cols = x.shape.cols();
    let fits = has_columns(out.shape, start, cols) && x.shape.rows() == out.shape.rows();
    require(fits, "columns", &[x.shape, out.shape])?;
    require_types("columns", &[x.dtype(), out.dtype()], &[])?;
    let (from, to) = (Columns { of: cols, start: 0 }, Columns { of: out.shape.cols(), start });
    device.copy_columns(x.slice, from, out.slice, to, cols);
    Ok(())
}

/// Sets a share of `x` to zero and lets the rest grow. It is its own backward.
///
/// # Errors
/// Elements that are not equally many a sequence; types that do not fit; columns that are sharded.
pub fn dropout<D: Pointwise>(
    device: &D,
    x: ViewMut<'_, D>,
    dropout: Dropout<'_, D::Buf>,
) -> Result<(), Error> {
    rules::dropout(&x.placements)?;
    let fits = x.shape.rows().checked_rem(dropout.keys.len()) == Some(0);
    require(fits, "dropout", &[x.shape, Shape::vector(dropout.keys.len())])?;
    require_types("dropout", &[x.dtype()], &[(dropout.keys.dtype(), DType::I64)])?;
    device.dropout(x.slice, dropout);
    Ok(())
}

/// A copy of `x` as a new activation.
///
/// # Errors
/// Out of memory.
pub fn copy_like<D: Pointwise>(device: &D, x: View<'_, D>) -> Result<Tensor<D>, Error> {
    let mut out = activation(device, "copy", x.dtype(), x.shape, x.placements)?;
    device.copy(x.slice, out.view_mut().slice);
    Ok(out)
}
