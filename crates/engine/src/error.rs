//! Why a step was not carried out.

use crate::Zero;
use memwall_comm::CommError;
use memwall_layout::Mesh;
use memwall_tensor::{Error as TensorError, OutOfMemory};
use thiserror::Error;

/// Why the engine stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A tensor operation could not be carried out.
    #[error("in unit {unit}: {source}")]
    InUnit {
        /// Number of the unit.
        unit: usize,
        /// What went wrong.
        source: TensorError,
    },
    /// A tensor operation outside of the units could not be carried out.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Ranks lie along an axis of the mesh that nothing is cut along.
    #[error(
        "a mesh of {} ranks, {} of them with samples of their own, and ZeRO stage {}: the engine cuts samples along \
         dp_replicate and dp_shard, and along dp_shard state too, which takes a stage of 1 or more",
        mesh.world(), mesh.data_ranks(), *zero as usize
    )]
    Mesh {
        /// The mesh.
        mesh: Mesh,
        /// What was to be sharded.
        zero: Zero,
    },
    /// Ranks do not have in common what they must.
    #[error(
        "after step {step}: the {what} of unit {unit} on rank {rank} of those that must have them in common are not those of \
         the first: ranks have drifted apart, and what they have trained since they last agreed cannot be trusted; go on from \
         a checkpoint before, and report this"
    )]
    Apart {
        /// What differs.
        what: &'static str,
        /// Number of the unit.
        unit: usize,
        /// The first rank that differs, by its number in the group.
        rank: usize,
        /// Steps done.
        step: u64,
    },
    /// The model has learned fewer positions than a sequence has tokens.
    #[error(
        "a sequence of {length} tokens: the model has learned {longest} positions; give shorter sequences"
    )]
    Positions {
        /// Tokens in a sequence.
        length: usize,
        /// Rows of the table of positions.
        longest: usize,
    },
    /// Loss or gradients are not finite. Parameters and optimizer states are as they were before the step.
    #[error(
        "step {step}: the {what} is not finite, or too large for its exact sum (first found in {tensor}); parameters are as before this step. \
         Lower optimizer.learning_rate, lengthen its warm-up, or look at the data of this step"
    )]
    NotFinite {
        /// The step, from 1.
        step: u64,
        /// "loss" or "gradient".
        what: &'static str,
        /// The first tensor that is not finite.
        tensor: String,
    },
}

impl EngineError {
    /// What did not fit, if that is why.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            EngineError::InUnit { source: TensorError::OutOfMemory(e), .. }
            | EngineError::Tensor(TensorError::OutOfMemory(e)) => Some(e),
            _ => None,
        }
    }
}

impl From<OutOfMemory> for EngineError {
    fn from(e: OutOfMemory) -> Self {
        EngineError::Tensor(TensorError::OutOfMemory(e))
    }
}

/// Adds the unit to an operation's error.
pub(crate) trait InUnit<T> {
    fn in_unit(self, unit: usize) -> Result<T, EngineError>;
}

impl<T> InUnit<T> for Result<T, TensorError> {
    fn in_unit(self, unit: usize) -> Result<T, EngineError> {
        self.map_err(|source| EngineError::InUnit { unit, source })
    }
}
