//! Where the parts of a tensor are, for each mesh axis.

use crate::Axis;
use std::fmt;
use thiserror::Error;

/// Where a tensor is along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Every rank holds all of it.
    #[default]
    Replicated,
    /// Every rank holds an even part of this tensor dim.
    Shard(u8),
    /// Every rank holds a summand: the sum over the axis is still owed.
    Partial,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicated => write!(f, "replicated"),
            Placement::Shard(dim) => write!(f, "sharded on dim {dim}"),
            Placement::Partial => write!(f, "partial"),
        }
    }
}

/// A placement for each axis of the mesh, in [`Axis::ALL`]'s order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placements([Placement; 6]);

impl Placements {
    /// Replicated on every axis: the placement of everything on one device.
    pub const REPLICATED: Placements = Placements([Placement::Replicated; 6]);

    /// The placement along `axis`.
    pub fn on(&self, axis: Axis) -> Placement {
        self.0[axis as usize]
    }

    /// The same, but `placement` along `axis`.
    #[must_use]
    pub fn with(mut self, axis: Axis, placement: Placement) -> Self {
        self.0[axis as usize] = placement;
        self
    }

    /// Of a matrix's transpose, where these are the matrix's.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self(self.0.map(|p| match p {
            Placement::Shard(dim) => Placement::Shard(1 - dim),
            p => p,
        }))
    }

    /// Applies a rule to each axis.
    pub(crate) fn per_axis<const N: usize>(
        operation: &'static str,
        inputs: [&Placements; N],
        rule: impl Fn([Placement; N]) -> Option<Placement>,
    ) -> Result<Placements, PlacementError> {
        let mut out = Placements::REPLICATED;
        for axis in Axis::ALL {
            let found = inputs.map(|p| p.on(axis));
            match rule(found) {
                Some(p) => out.0[axis as usize] = p,
                None => return Err(PlacementError { operation, axis, found: found.to_vec() }),
            }
        }
        Ok(out)
    }
}

/// Placements that an operation cannot mix.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operation}: on axis {} the operands are {}; no rule mixes these", axis.name(), list(found))]
pub struct PlacementError {
    /// Name of the operation.
    pub operation: &'static str,
    /// The axis on which the mix is illegal.
    pub axis: Axis,
    /// Placements of the operands on that axis, in the operation's order.
    pub found: Vec<Placement>,
}

fn list(found: &[Placement]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
