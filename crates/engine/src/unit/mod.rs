//! The units: the grain of everything. Each computes forward and backward from a lease of its weights.

mod block;
mod embedding;
mod head;

pub use block::{Block, Kept, Mlp, Qkv};
pub use embedding::Embedding;
pub use head::{Head, LossSum};

use memwall_layout::Placements;
use memwall_model::ModelConfig;
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Error, Shape, Tensor, View, math};

/// What the units share of a micro-batch: sizes, and which position each token has.
#[derive(Debug)]
pub struct Sequences<'a, D: Memory> {
    /// Sequences.
    pub batch: usize,
    /// Tokens in each.
    pub length: usize,
    /// Position of each token in its document, `[batch x length]`.
    pub positions: View<'a, D>,
    /// Cosines and sines by position; see [`rope_table`].
    pub table: View<'a, D>,
}

impl<D: Memory> Clone for Sequences<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Memory> Copy for Sequences<'_, D> {}

/// The rotary embedding's angles for positions `0 .. positions`: `[positions, head_dim]`, each row the
/// cosines of the `head_dim / 2` pairs, then their sines.
///
/// # Errors
/// Out of memory.
pub fn rope_table<D: Device>(device: &D, config: &ModelConfig, positions: usize) -> Result<Tensor<D>, Error> {
    let shape = Shape::matrix(positions, config.head_dim);
    let mut table = Tensor::new(device, shape, DType::F32, Placements::REPLICATED, Category::Workspace)?;
    let frequencies = config.rope.inverse_frequencies(config.head_dim);
    let mut row = vec![0f32; config.head_dim];
    for position in 0..positions {
        for (i, f) in frequencies.iter().enumerate() {
            let (sin, cos) = math::sin_cos(position as f64 * f);
            (row[i], row[i + frequencies.len()]) = (cos as f32, sin as f32);
        }
        device.write(table.view_mut().rows(position, 1).slice, bytemuck::cast_slice(&row));
    }
    Ok(table)
}
