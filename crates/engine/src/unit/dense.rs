//! A linear layer of a unit, with its bias.

use crate::Lease;
use crate::sink::GradSink;
use memwall_model::{DenseSpec, Stored};
use memwall_tensor::device::Device;
use memwall_tensor::ops::{self, Matrix};
use memwall_tensor::{Error, Tensor, View, ViewMut};

/// A linear layer.
#[derive(Debug, Clone, Copy)]
pub struct Dense(pub DenseSpec);

impl Dense {
    fn matrix<'a, D: Device>(&self, w: &Lease<'a, D>) -> Matrix<'a, D> {
        Matrix { view: w.get(self.0.weight), transposed: self.0.stored == Stored::InOut }
    }

    fn bias<'a, D: Device>(&self, w: &Lease<'a, D>) -> Option<View<'a, D>> {
        self.0.bias.map(|b| w.get(b))
    }

    /// `x w^T + b`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        x: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        ops::affine(device, x, self.matrix(w), self.bias(w))
    }

    /// `y = x w^T + b`, and the activation of `y`: `silu(gate) * y` where there is a gate, else `gelu(y)`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn activated<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        x: View<'_, D>,
        gate: Option<View<'_, D>>,
    ) -> Result<(Tensor<D>, Tensor<D>), Error> {
        match gate {
            Some(gate) => ops::affine_swiglu(device, x, self.matrix(w), self.bias(w), gate),
            None => ops::affine_gelu(device, x, self.matrix(w), self.bias(w)),
        }
    }

    /// `y += x w^T + b`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn add_to<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        x: View<'_, D>,
        y: ViewMut<'_, D>,
    ) -> Result<(), Error> {
        ops::affine_into(device, x, self.matrix(w), self.bias(w), y, true)
    }

    /// Hands the gradients of matrix and bias to the sink.
    ///
    /// # Errors
    /// Out of memory.
    pub fn weight_gradients<D: Device>(
        &self,
        device: &D,
        sink: &mut GradSink<'_, D>,
        dy: View<'_, D>,
        x: View<'_, D>,
    ) -> Result<(), Error> {
        let (rows, cols) = if self.0.stored == Stored::InOut { (x, dy) } else { (dy, x) };
        sink.add(self.0.weight, |dw, acc| ops::linear_weight_gradient(device, rows, cols, dw, acc))?;
        match self.0.bias {
            Some(b) => sink.add(b, |db, acc| ops::bias_gradient(device, dy, db, acc)),
            None => Ok(()),
        }
    }

    /// The gradient of `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn input_gradient<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        dy: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        ops::linear_input_gradient(device, dy, self.matrix(w))
    }

    /// Adds the gradient of `x` to `dx`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn add_input_gradient<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        dy: View<'_, D>,
        dx: ViewMut<'_, D>,
    ) -> Result<(), Error> {
        ops::linear_input_gradient_into(device, dy, self.matrix(w), dx, true)
    }
}
