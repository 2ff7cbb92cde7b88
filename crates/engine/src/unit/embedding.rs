//! The first unit: token ids to the residual stream.

use crate::Lease;
use crate::sink::GradSink;
use memwall_model::{ParamId, UnitSpec};
use memwall_tensor::device::Device;
use memwall_tensor::{Error, Tensor, View, ops};

/// The embedding.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub table: ParamId,
}

impl Embedding {
    /// From the unit's parameters.
    pub fn new(spec: &UnitSpec) -> Self {
        Self { table: spec.params[0] }
    }

    /// Looks up `ids [tokens]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        ids: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        ops::embedding(device, ids, w.get(self.table))
    }

    /// Hands the table's gradient to the sink.
    ///
    /// # Errors
    /// Out of memory.
    pub fn backward<D: Device>(
        &self,
        device: &D,
        ids: View<'_, D>,
        dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<(), Error> {
        sink.add(self.table, |dw, accumulate| ops::embedding_gradient(device, ids, dy.view(), dw, accumulate))
    }
}
