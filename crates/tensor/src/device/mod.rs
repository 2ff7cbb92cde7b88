//! What a device must do, a trait for each subject.
//!
//! Operations write into buffers that the caller allocated; they may not fail. Shapes and placements have
//! been checked by [`crate::ops`], so a device states its requirements as assertions at most. An operation
//! issued earlier is complete, as far as its issuer can tell, before one issued later begins.

mod attention;
mod linear;
mod loss;
mod memory;
mod norms;
mod optimizer;
mod pointwise;

pub use attention::{Attention, AttentionDims, AttentionInput, AttentionSaved, Dropout};
pub use linear::{Activation, Epilogue, Linear, MatmulDims, MatmulLayout};
pub use loss::Loss;
pub use memory::{Buffer, Memory};
pub use norms::{LayerNorm, Norms, RowStats};
pub use optimizer::{AdamW, Optimizer};
pub use pointwise::{Columns, Pointwise, RopeDims};

/// All that a decoder's training step needs. The name stands for the whole set of traits.
pub trait Device:
    Memory + Linear + Attention + Norms + Pointwise + Loss + Optimizer + Send + 'static
{
}

impl<T: Memory + Linear + Attention + Norms + Pointwise + Loss + Optimizer + Send + 'static> Device for T {}
