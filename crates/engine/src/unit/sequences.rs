//! What the units share of a micro-batch: sizes, positions, rotary angles and keys of dropout.

use super::Dense;
use crate::Lease;
use memwall_layout::Placements;
use memwall_model::ModelConfig;
use memwall_tensor::device::{Device, Dropout, Memory};
use memwall_tensor::{Category, DType, Error, Shape, Tensor, View, ViewMut, math, ops};

/// What the units share of a micro-batch.
#[derive(Debug)]
pub struct Sequences<'a, D: Memory> {
    /// Sequences.
    pub batch: usize,
    /// Tokens in each.
    pub length: usize,
    /// Position of each token in its document, `[batch x length]`.
    pub positions: View<'a, D>,
    /// Cosines and sines by position, see [`rope_table`]; none where positions are learned.
    pub table: Option<View<'a, D>>,
    /// A key of random streams for each sequence, `[batch]`, i64; none where nothing is dropped out.
    pub keys: Option<View<'a, D>>,
}

impl<D: Memory> Clone for Sequences<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Memory> Copy for Sequences<'_, D> {}

/// Where a model drops out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The embedding's result.
    Embedding,
    /// Attention's probabilities in this block.
    Attention(usize),
    /// What attention adds to the residual stream in this block.
    AttentionResidual(usize),
    /// What the MLP adds to the residual stream in this block.
    MlpResidual(usize),
}

impl Site {
    fn salt(self) -> u64 {
        match self {
            Site::Embedding => 0,
            Site::Attention(layer) => 4 * layer as u64 + 1,
            Site::AttentionResidual(layer) => 4 * layer as u64 + 2,
            Site::MlpResidual(layer) => 4 * layer as u64 + 3,
        }
    }
}

impl<'a, D: Device> Sequences<'a, D> {
    /// The dropout at a site, where there is one.
    pub(super) fn dropout(&self, site: Site, rate: f64) -> Option<Dropout<'a, D::Buf>> {
        let keys = self.keys.filter(|_| rate > 0.0)?.slice;
        Some(Dropout { keys, salt: site.salt(), rate: rate as f32 })
    }

    /// Turns the heads of `x` by their positions' angles, or back; leaves it where positions are learned.
    pub(super) fn turn(&self, device: &D, x: ViewMut<'_, D>, inverse: bool) -> Result<(), Error> {
        self.table.map_or(Ok(()), |table| ops::rope(device, x, self.positions, table, inverse))
    }

    /// Adds what `dense` makes of `x` to the residual `stream`, some of it dropped out.
    pub(super) fn add_dropped(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        dense: Dense,
        x: View<'_, D>,
        stream: ViewMut<'_, D>,
        (site, rate): (Site, f64),
    ) -> Result<(), Error> {
        let Some(dropout) = self.dropout(site, rate) else {
            return dense.add_to(device, w, x, stream);
        };
        let mut y = dense.forward(device, w, x)?;
        ops::dropout(device, y.view_mut(), dropout)?;
        ops::add(device, stream, y.view())
    }

    /// The gradient of what was dropped out before it was added, where something was; else it is the stream's own.
    pub(super) fn dropped_gradient(
        &self,
        device: &D,
        dstream: View<'_, D>,
        (site, rate): (Site, f64),
    ) -> Result<Option<Tensor<D>>, Error> {
        let Some(dropout) = self.dropout(site, rate) else { return Ok(None) };
        let mut d = ops::copy_like(device, dstream)?;
        ops::dropout(device, d.view_mut(), dropout)?;
        Ok(Some(d))
    }
}

/// The rotary embedding's angles for positions `0 .. positions`: `[positions, head_dim]`, each row the
/// cosines of the `head_dim / 2` pairs, then their sines. None where positions are learned.
///
/// # Errors
/// Out of memory.
pub fn rope_table<D: Device>(
    device: &D,
    config: &ModelConfig,
    positions: usize,
) -> Result<Option<Tensor<D>>, Error> {
    let Some(rope) = config.rope else { return Ok(None) };
    let shape = Shape::matrix(positions, config.head_dim);
    device.ledger().operation("rotary angles");
    let mut table = Tensor::new(device, shape, DType::F32, Placements::REPLICATED, Category::Workspace)?;
    let frequencies = rope.inverse_frequencies(config.head_dim);
    device.write_rows(table.view_mut().slice, config.head_dim, &mut |position, row| {
        for (i, f) in frequencies.iter().enumerate() {
            let (sin, cos) = math::sin_cos(position as f64 * f);
            (row[i], row[i + frequencies.len()]) = (cos as f32, sin as f32);
        }
    });
    Ok(Some(table))
}
