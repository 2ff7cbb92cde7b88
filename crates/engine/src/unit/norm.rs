//! A norm of a unit.

use crate::Lease;
use crate::sink::GradSink;
use memwall_model::NormSpec;
use memwall_tensor::device::Device;
use memwall_tensor::ops::{self, NormWeights, Normed};
use memwall_tensor::{Error, View, ViewMut};

/// An RMSNorm, or a LayerNorm.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// Parameters.
    pub spec: NormSpec,
    /// Inside the root.
    pub eps: f64,
}

impl Norm {
    /// Norms the rows of `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        x: View<'_, D>,
    ) -> Result<Normed<D>, Error> {
        let weights =
            NormWeights { w: w.get(self.spec.weight), b: self.spec.bias.map(|b| w.get(b)), eps: self.eps };
        ops::norm(device, x, weights)
    }

    /// Hands the gradients of weight and bias to the sink, and adds the input's to `dx`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        sink: &mut GradSink<'_, D>,
        x: View<'_, D>,
        normed: &Normed<D>,
        dy: View<'_, D>,
        dx: ViewMut<'_, D>,
    ) -> Result<(), Error> {
        sink.add(self.spec.weight, |dw, acc| ops::norm_weight_gradient(device, x, normed, dy, dw, acc))?;
        if let Some(b) = self.spec.bias {
            sink.add(b, |db, acc| ops::bias_gradient(device, dy, db, acc))?;
        }
        ops::norm_input_gradient(device, x, w.get(self.spec.weight), normed, dy, dx)
    }
}
