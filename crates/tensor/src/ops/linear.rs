//! The linear layer `y = x w^T` and its gradients. Each operand and each result is f32 or bf16.

use super::{activation, require, require_types};
use crate::device::{Activation, Epilogue, Linear, MatmulDims, MatmulLayout};
use crate::{DType, Error, Shape, Tensor, TypeError, View, ViewMut};
use memwall_layout::{PlacementError, Placements, rules};

const INPUT_GRADIENT: &str = "linear backward for the input";

/// A layer's matrix: `[out, in]`, or lying transposed, `[in, out]`.
#[derive(Debug)]
pub struct Matrix<'a, D: Linear> {
    /// As it lies.
    pub view: View<'a, D>,
    /// Whether it lies `[in, out]`.
    pub transposed: bool,
}

impl<D: Linear> Clone for Matrix<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Linear> Copy for Matrix<'_, D> {}

impl<'a, D: Linear> From<View<'a, D>> for Matrix<'a, D> {
    fn from(view: View<'a, D>) -> Self {
        Self { view, transposed: false }
    }
}

impl<D: Linear> Matrix<'_, D> {
    /// Dims of the layer's input and result.
    fn dims(&self) -> (usize, usize) {
        let s = self.view.shape;
        if self.transposed { (s.rows(), s.cols()) } else { (s.cols(), s.rows()) }
    }

    /// As of a matrix that lies `[out, in]`.
    fn placements(&self) -> Placements {
        if self.transposed { self.view.placements.transposed() } else { self.view.placements }
    }
}

/// `y = x w^T`: `x [tokens, in]`, `w` of `in` to `out` dims, `y [tokens, out]` in the type of `x`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn linear<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
) -> Result<Tensor<D>, Error> {
    affine(device, x, w, None)
}

/// `y = x w^T`, added to `y` when `accumulate`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn linear_into<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    y: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    affine_into(device, x, w, None, y, accumulate)
}

/// `y = x w^T + b`, with `b [out]`; see [`linear`].
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn affine<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    b: Option<View<'_, D>>,
) -> Result<Tensor<D>, Error> {
    let w = w.into();
    let mut y = result(device, x, &w, b)?;
    product(device, x, w, b, None, y.view_mut(), false)?;
    Ok(y)
}

/// `y = x w^T + b`, added to `y` when `accumulate`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn affine_into<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    b: Option<View<'_, D>>,
    y: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    product(device, x, w.into(), b, None, y, accumulate)
}

/// `y = x w^T + b`, and `gelu(y)`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn affine_gelu<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    b: Option<View<'_, D>>,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    let w = w.into();
    let mut y = result(device, x, &w, b)?;
    let placements = rules::elementwise("gelu", [("the product", &y.placements())])?;
    let mut out = activation(device, "gelu", y.dtype(), y.shape(), placements)?;
    let gelu = Activation::Gelu { out: out.view_mut().slice };
    product(device, x, w, b, Some(gelu), y.view_mut(), false)?;
    Ok((y, out))
}

/// `y = x w^T + b`, and `silu(gate) * y`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn affine_swiglu<'a, D: Linear + 'a>(
    device: &D,
    x: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    b: Option<View<'_, D>>,
    gate: View<'_, D>,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    let w = w.into();
    let mut y = result(device, x, &w, b)?;
    let placements =
        rules::elementwise("swiglu", [("gate", &gate.placements), ("the product", &y.placements())])?;
    require(gate.shape == y.shape(), "swiglu", &[gate.shape, y.shape()])?;
    require_types("swiglu", &[gate.dtype(), y.dtype()], &[])?;
    let mut out = activation(device, "swiglu", y.dtype(), y.shape(), placements)?;
    let swiglu = Activation::Swiglu { gate: gate.slice, out: out.view_mut().slice };
    product(device, x, w, b, Some(swiglu), y.view_mut(), false)?;
    Ok((y, out))
}

/// A tensor for `x w^T + b`.
fn result<D: Linear>(
    device: &D,
    x: View<'_, D>,
    w: &Matrix<'_, D>,
    b: Option<View<'_, D>>,
) -> Result<Tensor<D>, Error> {
    let placements = placed(x, w, b)?;
    activation(device, "linear", x.dtype(), Shape::matrix(x.shape.rows(), w.dims().1), placements)
}

fn placed<D: Linear>(
    x: View<'_, D>,
    w: &Matrix<'_, D>,
    b: Option<View<'_, D>>,
) -> Result<Placements, PlacementError> {
    let product = rules::linear(&x.placements, &w.placements())?;
    b.map_or(Ok(product), |b| rules::bias(&product, &b.placements))
}

fn product<D: Linear>(
    device: &D,
    x: View<'_, D>,
    w: Matrix<'_, D>,
    b: Option<View<'_, D>>,
    activation: Option<Activation<'_, D::Buf>>,
    y: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    rules::accumulate("linear", ("y", &y.placements), &placed(x, &w, b)?)?;
    let (k, n) = w.dims();
    let m = x.shape.rows();
    let fits = x.shape.cols() == k && y.shape == Shape::matrix(m, n);
    require(fits, "linear", &[x.shape, w.view.shape, y.shape])?;
    floats("linear", [x.dtype(), w.view.dtype(), y.dtype()])?;
    if let Some(b) = b {
        require(b.shape == Shape::vector(n), "bias", &[y.shape, b.shape])?;
        require_types("bias", &[y.dtype(), b.dtype()], &[])?;
    }
    let layout = if w.transposed { MatmulLayout::Nn } else { MatmulLayout::Nt };
    let epilogue = Epilogue { accumulate, bias: b.map(|b| b.slice), activation };
    device.matmul(layout, MatmulDims { m, n, k }, x.slice, w.view.slice, y.slice, epilogue);
    Ok(())
}

/// `dx = dy w`, in the type of `dy`.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn linear_input_gradient<'a, D: Linear + 'a>(
    device: &D,
    dy: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
) -> Result<Tensor<D>, Error> {
    let w = w.into();
    let placements = rules::linear_input_gradient(&dy.placements, &w.placements())?;
    let shape = Shape::matrix(dy.shape.rows(), w.dims().0);
    let mut dx = activation(device, INPUT_GRADIENT, dy.dtype(), shape, placements)?;
    linear_input_gradient_into(device, dy, w, dx.view_mut(), false)?;
    Ok(dx)
}

/// `dx = dy w`, added to `dx` when `accumulate`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn linear_input_gradient_into<'a, D: Linear + 'a>(
    device: &D,
    dy: View<'_, D>,
    w: impl Into<Matrix<'a, D>>,
    dx: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    let w = w.into();
    let placements = rules::linear_input_gradient(&dy.placements, &w.placements())?;
    rules::accumulate(INPUT_GRADIENT, ("dx", &dx.placements), &placements)?;
    let (n, k) = w.dims();
    let m = dy.shape.rows();
    let fits = dy.shape.cols() == k && dx.shape == Shape::matrix(m, n);
    require(fits, INPUT_GRADIENT, &[dy.shape, w.view.shape, dx.shape])?;
    floats(INPUT_GRADIENT, [dy.dtype(), w.view.dtype(), dx.dtype()])?;
    let layout = if w.transposed { MatmulLayout::Nt } else { MatmulLayout::Nn };
    device.matmul(
        layout,
        MatmulDims { m, n, k },
        dy.slice,
        w.view.slice,
        dx.slice,
        Epilogue::accumulate(accumulate),
    );
    Ok(())
}

/// `dw = dy^T x`, added to `dw` when `accumulate`. For a matrix that lies `[in, out]`, its gradient lies so too: give
/// `x` as `dy` and `dy` as `x`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn linear_weight_gradient<D: Linear>(
    device: &D,
    dy: View<'_, D>,
    x: View<'_, D>,
    dw: ViewMut<'_, D>,
    accumulate: bool,
) -> Result<(), Error> {
    const NAME: &str = "linear backward for the weight";
    let placements = rules::linear_weight_gradient(&dy.placements, &x.placements)?;
    rules::accumulate(NAME, ("dw", &dw.placements), &placements)?;
    let (m, n, k) = (dy.shape.cols(), x.shape.cols(), dy.shape.rows());
    let fits = x.shape.rows() == k && dw.shape == Shape::matrix(m, n);
    require(fits, NAME, &[dy.shape, x.shape, dw.shape])?;
    floats(NAME, [dy.dtype(), x.dtype(), dw.dtype()])?;
    device.matmul(
        MatmulLayout::Tn,
        MatmulDims { m, n, k },
        dy.slice,
        x.slice,
        dw.slice,
        Epilogue::accumulate(accumulate),
    );
    Ok(())
}

/// A product mixes f32 and bf16 freely, and takes nothing else.
fn floats(operation: &'static str, types: [DType; 3]) -> Result<(), TypeError> {
    types.iter().try_for_each(|t| require_types(operation, &[*t], &[]))
}
