//! Why an operation was not carried out.

use crate::OutOfMemory;
use memwall_layout::PlacementError;
use thiserror::Error;

/// Operands whose shapes do not fit each other: a fault of the calling program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operation}: shapes {shapes} do not fit")]
pub struct ShapeError {
    /// Name of the operation.
    pub operation: &'static str,
    /// The operands' shapes in the operation's order.
    pub shapes: String,
}

/// Operands whose element types an operation does not mix: a fault of the calling program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operation}: operands of types {types} do not go together")]
pub struct TypeError {
    /// Name of the operation.
    pub operation: &'static str,
    /// The operands' types in the operation's order.
    pub types: String,
}

/// Why a tensor operation was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The device's budget is used up.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// Shapes do not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Element types do not go together.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// Placements do not mix.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}
