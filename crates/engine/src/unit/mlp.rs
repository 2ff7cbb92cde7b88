//! The MLP half of a block: norm, inner projections, activation, output projection.

use super::{Dense, Norm, Sequences, Site};
use crate::Lease;
use crate::sink::GradSink;
use memwall_model::{BlockSpec, MlpSpec, ModelConfig};
use memwall_tensor::device::Device;
use memwall_tensor::{Error, Tensor, View, ops};

/// Layers.
#[derive(Debug, Clone, Copy)]
pub struct Mlp {
    norm: Norm,
    spec: MlpSpec,
    dropout: f64,
    /// Number of the block.
    layer: usize,
}

/// The inner projections, `[tokens, intermediate]`, before the activation.
#[derive(Debug)]
pub enum Inner<D: Device> {
    /// Of a gated MLP.
    Gated {
        /// What goes through the activation.
        gate: Tensor<D>,
        /// What it multiplies.
        up: Tensor<D>,
    },
    /// Of a plain one.
    Plain(Tensor<D>),
}

impl Mlp {
    pub(super) fn new(c: &ModelConfig, spec: &BlockSpec, layer: usize) -> Self {
        let norm = Norm { spec: spec.norm2, eps: c.norm_eps };
        Self { norm, spec: spec.mlp, dropout: c.dropout.residual, layer }
    }

    /// Norm, inner projections and activation of the residual stream `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn inner<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        x: View<'_, D>,
    ) -> Result<(Inner<D>, Tensor<D>), Error> {
        let n = self.norm.forward(device, w, x)?.y;
        match self.spec {
            MlpSpec::Gated { gate, up, .. } => {
                let gate = Dense(gate).forward(device, w, n.view())?;
                let (up, activated) = Dense(up).activated(device, w, n.view(), Some(gate.view()))?;
                Ok((Inner::Gated { gate, up }, activated))
            }
            MlpSpec::Plain { up, .. } => {
                let (up, activated) = Dense(up).activated(device, w, n.view(), None)?;
                Ok((Inner::Plain(up), activated))
            }
        }
    }

    fn down(&self) -> Dense {
        match self.spec {
            MlpSpec::Gated { down, .. } | MlpSpec::Plain { down, .. } => Dense(down),
        }
    }

    fn residual(&self) -> (Site, f64) {
        (Site::MlpResidual(self.layer), self.dropout)
    }

    /// The activation of inner projections that were kept.
    ///
    /// # Errors
    /// Out of memory.
    pub fn activated<D: Device>(&self, device: &D, inner: &Inner<D>) -> Result<Tensor<D>, Error> {
        match inner {
            Inner::Gated { gate, up } => ops::swiglu(device, gate.view(), up.view()),
            Inner::Plain(x) => ops::gelu(device, x.view()),
        }
    }

    /// Adds the projected activation to the residual stream `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn add<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        activated: View<'_, D>,
        mut x: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        seq.add_dropped(device, w, self.down(), activated, x.view_mut(), self.residual())?;
        Ok(x)
    }

    /// From the gradient of the block's result to that of the stream `x` between attention and MLP.
    pub(super) fn backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: Tensor<D>,
        (mut inner, activated): (Inner<D>, Tensor<D>),
        mut dx: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let dropped = seq.dropped_gradient(device, dx.view(), self.residual())?;
        let dy = dropped.as_ref().unwrap_or(&dx).view();
        self.down().weight_gradients(device, sink, dy, activated.view())?;
        drop(activated);
        let da = self.down().input_gradient(device, w, dy)?;
        drop(dropped);
        match &mut inner {
            Inner::Gated { gate, up } => {
                ops::swiglu_backward(device, gate.view_mut(), up.view_mut(), da.view())?;
            }
            Inner::Plain(x) => ops::gelu_backward(device, x.view_mut(), da.view())?,
        }
        drop(da);
        let n = self.norm.forward(device, w, x.view())?;
        let (first, second) = match (self.spec, &inner) {
            (MlpSpec::Gated { gate, up, .. }, Inner::Gated { gate: dgate, up: dup }) => {
                ((Dense(gate), dgate), Some((Dense(up), dup)))
            }
            (MlpSpec::Plain { up, .. }, Inner::Plain(dup)) => ((Dense(up), dup), None),
            _ => unreachable!("the inner projections are this MLP's"),
        };
        first.0.weight_gradients(device, sink, first.1.view(), n.y.view())?;
        if let Some((dense, dy)) = second {
            dense.weight_gradients(device, sink, dy.view(), n.y.view())?;
        }
        let mut dn = first.0.input_gradient(device, w, first.1.view())?;
        if let Some((dense, dy)) = second {
            dense.add_input_gradient(device, w, dy.view(), dn.view_mut())?;
        }
        drop(inner);
        self.norm.backward(device, w, sink, x.view(), &n, dn.view(), dx.view_mut())?;
        Ok(dx)
    }
}
