//! The first unit: token ids, and positions where they are learned, to the residual stream.

use super::{Sequences, Site};
use crate::Lease;
use crate::sink::GradSink;
use memwall_model::{ModelConfig, ParamId};
use memwall_tensor::device::Device;
use memwall_tensor::{Error, Tensor, View, ops};

/// The embedding.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    table: ParamId,
    /// `[max_positions, hidden]`.
    positions: Option<ParamId>,
    dropout: f64,
}

impl Embedding {
    /// From the unit's parameters.
    pub fn new(config: &ModelConfig, table: ParamId, positions: Option<ParamId>) -> Self {
        Self { table, positions, dropout: config.dropout.embedding }
    }

    /// Looks up `ids [tokens]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        ids: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let mut x = ops::embedding(device, ids, w.get(self.table))?;
        if let Some(table) = self.positions {
            ops::add_embedding(device, seq.positions, w.get(table), x.view_mut())?;
        }
        if let Some(dropout) = seq.dropout(Site::Embedding, self.dropout) {
            ops::dropout(device, x.view_mut(), dropout)?;
        }
        Ok(x)
    }

    /// Hands the tables' gradients to the sink.
    ///
    /// # Errors
    /// Out of memory.
    pub fn backward<D: Device>(
        &self,
        device: &D,
        seq: Sequences<'_, D>,
        ids: View<'_, D>,
        mut dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<(), Error> {
        if let Some(dropout) = seq.dropout(Site::Embedding, self.dropout) {
            ops::dropout(device, dy.view_mut(), dropout)?;
        }
        let dy = dy.view();
        sink.add(self.table, |dw, accumulate| ops::embedding_gradient(device, ids, dy, dw, accumulate))?;
        match self.positions {
            Some(table) => {
                sink.add(table, |dw, acc| ops::embedding_gradient(device, seq.positions, dy, dw, acc))
            }
            None => Ok(()),
        }
    }
}
