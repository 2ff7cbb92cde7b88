//! What is trained: a Hugging Face `config.json` becomes a [`ModelSpec`]: units, parameters, shapes
//! and FLOPs.
//!
//! Nothing here knows how a model is cut, stored or computed. A *unit* is the grain of everything else:
//! the embedding, each transformer block, and the final norm with the head. A unit is what is gathered,
//! recomputed, given to a pipeline stage, prefetched and checkpointed.

mod config;
mod error;
mod export;
mod family;
mod flops;
mod keys;
mod presets;
mod rope;
mod spec;

pub use config::{Dropout, ModelConfig};
pub use error::ModelError;
pub use family::Family;
pub use presets::Preset;
pub use rope::{RopeScaling, RopeSpec};
pub use spec::{
    BlockSpec, DenseSpec, Init, MlpSpec, ModelSpec, NormSpec, ParamId, ParamSpec, ProjectionSpec, Stored,
    UnitKind, UnitSpec,
};
