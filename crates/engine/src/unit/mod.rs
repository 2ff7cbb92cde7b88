//! The units: the grain of everything. Each computes forward and backward from a lease of its weights.

mod attention;
mod block;
mod dense;
mod embedding;
mod head;
mod mlp;
mod norm;
mod sequences;

pub use attention::{Attention, Projected, Qkv};
pub use block::{Block, Kept};
pub use dense::Dense;
pub use embedding::Embedding;
pub use head::{Head, LossSum};
pub use mlp::{Inner, Mlp};
pub use norm::Norm;
pub use sequences::{Sequences, Site, rope_table};
