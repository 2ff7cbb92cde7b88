//! The last unit: final norm, head and loss, by chunks of tokens, so that the whole logits never exist.

use super::Norm;
use crate::Lease;
use crate::sink::GradSink;
use memwall_layout::Placements;
use memwall_model::{ModelConfig, NormSpec, ParamId};
use memwall_tensor::device::Device;
use memwall_tensor::{Category, DType, Error, Shape, Tensor, View, ViewMut, ops};

/// The head.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    norm: Norm,
    /// `[vocabulary, hidden]`; the embedding's where they are tied.
    pub weight: ParamId,
    chunk: usize,
}

/// The sum of losses that a forward adds to: `scale x` each token's loss.
#[derive(Debug)]
pub struct LossSum<'a, D: Device> {
    /// The wide sum.
    pub sum: ViewMut<'a, D>,
    /// One over the global count of valid tokens.
    pub scale: f64,
}

impl Head {
    /// From the config and the unit's parameters.
    pub fn new(config: &ModelConfig, norm: NormSpec, weight: ParamId) -> Self {
        let norm = Norm { spec: norm, eps: config.norm_eps };
        Self { norm, weight, chunk: Self::chunk(config.vocab_size) }
    }

    /// Tokens whose logits exist at a time: at most 8 Mi logits and a multiple of 64 tokens, so that chunks of usual
    /// sequences are equal; but no fewer than 64 tokens (a matrix product of fewer rows would mostly read the weight), and no
    /// more than 512 (more gain nothing).
    pub fn chunk(vocabulary: usize) -> usize {
        ((8 << 20) / vocabulary / 64 * 64).clamp(64, 512)
    }

    /// Loss of `x [tokens, hidden]` against `targets [tokens]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        own: &Lease<'_, D>,
        weight: View<'_, D>,
        x: Tensor<D>,
        targets: View<'_, D>,
        loss: &mut LossSum<'_, D>,
    ) -> Result<(), Error> {
        let n = self.norm.forward(device, own, x.view())?.y;
        drop(x);
        self.chunks(device, weight, n.view(), targets, loss, None, |_, _, _| Ok(()))
    }

    /// Loss and backward at once; returns the gradient of `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward_backward<D: Device>(
        &self,
        device: &D,
        own: &Lease<'_, D>,
        weight: View<'_, D>,
        x: Tensor<D>,
        targets: View<'_, D>,
        loss: &mut LossSum<'_, D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let normed = self.norm.forward(device, own, x.view())?;
        let n = normed.y.view();
        device.ledger().operation("linear backward for the input");
        let mut dn = Tensor::new(device, x.shape(), x.dtype(), n.placements, Category::Activations)?;
        let scale = loss.scale as f32;
        let mut through = |start, logits: &Tensor<D>, rows| {
            let dn = dn.view_mut().rows(start, rows);
            ops::linear_input_gradient_into(device, logits.view(), weight, dn, false)
        };
        if sink.wants(self.weight) {
            sink.add(self.weight, |mut dw, accumulate| {
                self.chunks(device, weight, n, targets, loss, Some(scale), |start, logits, rows| {
                    through(start, logits, rows)?;
                    let (dlogits, n) = (logits.view(), n.rows(start, rows));
                    ops::linear_weight_gradient(device, dlogits, n, dw.reborrow(), accumulate || start > 0)
                })
            })?;
        } else {
            self.chunks(device, weight, n, targets, loss, Some(scale), through)?;
        }
        device.ledger().operation("norm backward for the input");
        let mut dx = Tensor::new(device, x.shape(), x.dtype(), n.placements, Category::Activations)?;
        device.zero(dx.view_mut().slice);
        self.norm.backward(device, own, sink, x.view(), &normed, dn.view(), dx.view_mut())?;
        Ok(dx)
    }

    /// Runs over chunks of tokens: logits, loss (and their gradient in place when there is a `scale`), then
    /// `then(first token, logits, tokens)`.
    #[allow(clippy::too_many_arguments)]
    fn chunks<D: Device>(
        &self,
        device: &D,
        weight: View<'_, D>,
        n: View<'_, D>,
        targets: View<'_, D>,
        loss: &mut LossSum<'_, D>,
        scale: Option<f32>,
        mut then: impl FnMut(usize, &Tensor<D>, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tokens = n.shape.rows();
        let workspace = |shape| Tensor::new(device, shape, DType::F32, n.placements, Category::Workspace);
        device.ledger().operation("losses");
        let mut losses: Tensor<D> = workspace(Shape::vector(tokens))?;
        for start in (0..tokens).step_by(self.chunk) {
            let rows = self.chunk.min(tokens - start);
            device.ledger().operation("logits");
            let mut logits = workspace(Shape::matrix(rows, weight.shape.rows()))?;
            ops::linear_into(device, n.rows(start, rows), weight, logits.view_mut(), false)?;
            let losses = losses.view_mut().rows(start, rows);
            ops::cross_entropy(device, logits.view_mut(), targets.rows(start, rows), losses, scale)?;
            then(start, &logits, rows)?;
        }
        ops::sum_wide(device, losses.view(), loss.scale, loss.sum.reborrow())
    }

    /// Logits of the last of the rows of `x`, for generation: `[1, vocabulary]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn last_logits<D: Device>(
        &self,
        device: &D,
        own: &Lease<'_, D>,
        weight: View<'_, D>,
        x: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let last = x.rows(x.shape.rows() - 1, 1);
        let n = self.norm.forward(device, own, last)?.y;
        let shape = Shape::matrix(1, weight.shape.rows());
        device.ledger().operation("logits");
        let mut logits = Tensor::new(device, shape, DType::F32, Placements::REPLICATED, Category::Workspace)?;
        ops::linear_into(device, n.view(), weight, logits.view_mut(), false)?;
        Ok(logits)
    }
}
