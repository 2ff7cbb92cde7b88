//! The units of a model in their order, which training, evaluation and generation share.

use crate::error::InUnit;
use crate::unit::{Block, Embedding, Head, Kept, Sequences};
use crate::{EngineError, Keep, Weights};
use memwall_comm::Group;
use memwall_model::{ModelConfig, ModelSpec, ParamId, UnitKind};
use memwall_tensor::device::Device;
use memwall_tensor::{SliceMut, Tensor, View};
use std::ops::Range;

/// The units of a model. Unit 0 is the embedding, unit `i + 1` block `i`, the last the head.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) embedding: Embedding,
    pub(crate) blocks: Vec<Block>,
    pub(crate) head: Head,
}

impl Stack {
    /// From a model's spec.
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let c = &spec.config;
        let (mut embedding, mut blocks, mut head) = (None, Vec::with_capacity(c.layers), None);
        for unit in &spec.units {
            match unit.kind {
                UnitKind::Embedding { table, positions } => {
                    embedding = Some(Embedding::new(c, table, positions));
                }
                UnitKind::Block(block) => blocks.push(Block::new(c, &block, blocks.len())),
                UnitKind::Head { norm, weight } => head = Some(Head::new(c, norm, weight)),
            }
        }
        let whole = "a model has an embedding and a head";
        Self { embedding: embedding.expect(whole), blocks, head: head.expect(whole) }
    }

    /// Refuses sequences for which a model has not learned enough positions: the lookup would leave its table.
    pub(crate) fn check_length(config: &ModelConfig, length: usize) -> Result<(), EngineError> {
        let longest = config.max_positions;
        if config.rope.is_none() && length > longest {
            return Err(EngineError::Positions { length, longest });
        }
        Ok(())
    }

    /// The head's unit number.
    pub(crate) fn last(&self) -> usize {
        self.blocks.len() + 1
    }

    /// The head's matrix, from whichever unit owns it.
    pub(crate) fn head_weight<'a, D: Device>(&self, weights: &'a Weights<D>) -> View<'a, D> {
        let (unit, _) = weights.layout().place(self.head.weight);
        weights.lease(unit).get(self.head.weight)
    }

    /// Embedding and blocks forward: what the head reads, and what each block kept. The head is next. `group` are the ranks
    /// that hold the parts of the weights.
    pub(crate) fn forward<D: Device>(
        &self,
        device: &D,
        weights: &mut Weights<D>,
        group: &dyn Group<D>,
        seq: Sequences<'_, D>,
        ids: View<'_, D>,
        keep: &Keep,
    ) -> Result<(Tensor<D>, Vec<Kept<D>>), EngineError> {
        device.ledger().at_unit(0);
        weights.advance(device, group)?;
        let mut x = self.embedding.forward(device, &weights.lease(0), seq, ids).in_unit(0)?;
        let mut kept = Vec::with_capacity(self.blocks.len());
        for (i, block) in self.blocks.iter().enumerate() {
            device.ledger().at_unit(i + 1);
            weights.advance(device, group)?;
            let (y, k) = block.forward(device, &weights.lease(i + 1), seq, x, keep).in_unit(i + 1)?;
            x = y;
            kept.push(k);
        }
        device.ledger().at_unit(self.last());
        Ok((x, kept))
    }
}

/// What parameters can be loaded into.
pub trait Parameters<D: Device> {
    /// Which of a parameter's elements are held here.
    fn held(&self, param: ParamId) -> Range<usize>;

    /// The device, and the place of those elements on it.
    fn parameter_mut(&mut self, param: ParamId) -> (&D, SliceMut<'_, D::Buf>);
}
