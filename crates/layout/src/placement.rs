//! Where the parts of a tensor are, for each mesh axis.

use crate::{Axis, Cut};
use std::fmt;
use thiserror::Error;

/// What summands become when they are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest of them.
    Max,
}

/// Where a tensor is along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Every rank holds all of it.
    #[default]
    Replicated,
    /// Every rank holds a part of this tensor dim.
    Shard(u8, Cut),
    /// Every rank holds a summand: the reduction over the axis is still owed.
    Partial(Reduction),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicated => write!(f, "replicated"),
            Placement::Shard(dim, cut) => write!(f, "sharded on dim {dim} {cut}"),
            Placement::Partial(Reduction::Sum) => write!(f, "partial (a sum is owed)"),
            Placement::Partial(Reduction::Max) => write!(f, "partial (a maximum is owed)"),
        }
    }
}

/// A placement for each axis of the mesh, in [`Axis::ALL`]'s order. A dim that several axes shard is cut by the first
/// of them, and each part by the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placements {
    on: [Placement; 6],
    /// A bit for each axis along which it is not replicated: most are, and rules need not look at them.
    placed: u8,
}

impl Placements {
    /// Replicated on every axis: the placement of everything on one device.
    pub const REPLICATED: Placements = Placements { on: [Placement::Replicated; 6], placed: 0 };

    /// The placement along `axis`.
    pub fn on(&self, axis: Axis) -> Placement {
        self.on[axis as usize]
    }

    /// The same, but `placement` along `axis`.
    #[must_use]
    pub fn with(mut self, axis: Axis, placement: Placement) -> Self {
        let bit = 1 << axis as u8;
        self.placed = if placement == Placement::Replicated { self.placed & !bit } else { self.placed | bit };
        self.on[axis as usize] = placement;
        self
    }

    /// Of a matrix's transpose, where these are the matrix's.
    #[must_use]
    pub fn transposed(self) -> Self {
        self.map(|p| match p {
            Placement::Shard(dim @ 0..=1, cut) => Placement::Shard(1 - dim, cut),
            p => p,
        })
    }

    /// Each placement that is not replicated, changed to another such.
    fn map(mut self, change: impl Fn(Placement) -> Placement) -> Self {
        if self.placed != 0 {
            self.on = self.on.map(change);
        }
        self
    }

    /// Of the same elements in rows of other length, where these are those of rows of `cols`: of each token's heads, say.
    /// Rows that are sharded become rows that are whole on each rank; where several axes shard them, they stay as they
    /// are, and what needs whole rows refuses them.
    #[must_use]
    pub fn in_rows_of(self, cols: usize, new_cols: usize) -> Self {
        let sharded = self.on.iter().filter(|p| matches!(p, Placement::Shard(1, _))).count();
        let divides = |a: usize, b: usize| sharded == 1 && a > 0 && b.is_multiple_of(a);
        self.map(|p| match p {
            Placement::Shard(1, Cut::Even) if divides(new_cols, cols) => {
                Placement::Shard(0, Cut::Strided(cols / new_cols))
            }
            Placement::Shard(0, Cut::Strided(run)) if run * cols == new_cols => {
                Placement::Shard(1, Cut::Even)
            }
            Placement::Shard(0, Cut::Padded(len)) if new_cols > 0 => {
                Placement::Shard(0, Cut::Padded(len * cols / new_cols))
            }
            p => p,
        })
    }

    /// Applies a rule to each axis. Operands have the names that the operation's documentation calls them by. Where all
    /// are replicated, so is the result, whatever the rule.
    pub(crate) fn per_axis<const N: usize>(
        operation: &'static str,
        operands: [(&'static str, &Placements); N],
        rule: impl Fn(Axis, [Placement; N]) -> Option<Placement>,
    ) -> Result<Placements, PlacementError> {
        let mut out = Placements::REPLICATED;
        let placed = operands.iter().fold(0, |bits, (_, p)| bits | p.placed);
        for axis in Axis::ALL.into_iter().filter(|axis| placed & 1 << *axis as u8 != 0) {
            match rule(axis, operands.map(|(_, p)| p.on(axis))) {
                Some(p) => out = out.with(axis, p),
                None => {
                    let found = operands.map(|(name, p)| (name, p.on(axis))).to_vec();
                    return Err(PlacementError { operation, axis, found });
                }
            }
        }
        Ok(out)
    }
}

/// Placements that an operation cannot mix.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operation}: on axis {}, {}; no rule mixes these", axis.name(), list(found))]
pub struct PlacementError {
    /// Name of the operation.
    pub operation: &'static str,
    /// The axis on which the mix is illegal.
    pub axis: Axis,
    /// Name and placement on that axis of each operand, in the operation's order.
    pub found: Vec<(&'static str, Placement)>,
}

fn list(found: &[(&str, Placement)]) -> String {
    found.iter().map(|(name, p)| format!("{name} is {p}")).collect::<Vec<_>>().join(", ")
}
