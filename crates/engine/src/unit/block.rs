//! A transformer block: attention and MLP, each behind a norm and beside the residual stream.
//!
//! Forward and backward are made of the same named pieces of [`Attention`] and [`Mlp`]. Backward rebuilds what was
//! not kept by calling them again.

use super::Sequences;
use super::attention::{Attention, Qkv};
use super::mlp::{Inner, Mlp};
use crate::sink::GradSink;
use crate::{Keep, Lease};
use memwall_model::{BlockSpec, ModelConfig};
use memwall_tensor::device::Device;
use memwall_tensor::ops::{self, AttentionForward};
use memwall_tensor::{Error, Tensor};

/// A block.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Its first half.
    pub attention: Attention,
    /// Its second half.
    pub mlp: Mlp,
}

/// What a block keeps for its backward; see [`Keep`].
#[derive(Debug)]
pub struct Kept<D: Device> {
    input: Option<Tensor<D>>,
    projections: Option<Qkv<D>>,
    attention: Option<AttentionForward<D>>,
    middle: Option<Tensor<D>>,
    mlp: Option<Inner<D>>,
}

impl Block {
    /// Block number `layer`.
    pub fn new(config: &ModelConfig, spec: &BlockSpec, layer: usize) -> Self {
        Self { attention: Attention::new(config, spec, layer), mlp: Mlp::new(config, spec, layer) }
    }

    /// Forward of `x [tokens, hidden]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: Tensor<D>,
        keep: &Keep,
    ) -> Result<(Tensor<D>, Kept<D>), Error> {
        let projected = self.attention.project(device, w, seq, x.view())?;
        let attention = self.attention.attend(device, seq, &projected.qkv)?;
        let projections = keep.projections.then(|| projected.into_kept());
        let (input, stream) = kept_or_moved(device, x, keep.input)?;
        let middle = self.attention.add(device, w, seq, attention.out.view(), stream)?;
        let attention = keep.attention.then_some(attention);
        let (inner, activated) = self.mlp.inner(device, w, middle.view())?;
        let mlp = keep.gate_up.then_some(inner);
        let (middle, stream) = kept_or_moved(device, middle, keep.middle)?;
        let y = self.mlp.add(device, w, seq, activated.view(), stream)?;
        Ok((y, Kept { input, projections, attention, middle, mlp }))
    }

    /// Backward: consumes what was kept and the gradient of the result, hands weight gradients to the sink and
    /// returns the gradient of the input.
    ///
    /// # Errors
    /// Out of memory.
    ///
    /// # Panics
    /// When the input was not kept.
    pub fn backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        kept: Kept<D>,
        dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let x = kept.input.expect("a block that is trained keeps its input");
        let projected = match kept.projections {
            Some(kept) => self.attention.restored(device, w, seq, kept)?,
            None => self.attention.project(device, w, seq, x.view())?,
        };
        let attention = match kept.attention {
            Some(t) => t,
            None => self.attention.attend(device, seq, &projected.qkv)?,
        };
        let middle = match kept.middle {
            Some(t) => t,
            None => {
                let stream = ops::copy_like(device, x.view())?;
                self.attention.add(device, w, seq, attention.out.view(), stream)?
            }
        };
        let mlp = match kept.mlp {
            Some(inner) => {
                let activated = self.mlp.activated(device, &inner)?;
                (inner, activated)
            }
            None => self.mlp.inner(device, w, middle.view())?,
        };
        let dmiddle = self.mlp.backward(device, w, seq, middle, mlp, dy, sink)?;
        self.attention.backward(device, w, seq, x, projected, attention, dmiddle, sink)
    }
}

/// The tensor to keep, and a stream to add to: a copy where it is kept, itself where it is not.
fn kept_or_moved<D: Device>(
    device: &D,
    t: Tensor<D>,
    keep: bool,
) -> Result<(Option<Tensor<D>>, Tensor<D>), Error> {
    if keep {
        let stream = ops::copy_like(device, t.view())?;
        Ok((Some(t), stream))
    } else {
        Ok((None, t))
    }
}
