//! What of each flat buffer this rank holds, and how tensors are placed among ranks.

use crate::{FlatLayout, Zero};
use memwall_comm::Groups;
use memwall_layout::{Axis, Cut, Mesh, Placement, Placements, Reduction};
use memwall_model::ParamId;
use memwall_tensor::device::Memory;
use std::ops::Range;

/// A rank's place among those that share a model's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    mesh: Mesh,
    zero: Zero,
    /// This rank's part of what is sharded, of [`Shares::parts`].
    index: usize,
    parts: usize,
}

impl Shares {
    /// Of a rank in these groups. Without more than one rank to share with, everything is whole.
    pub(crate) fn of<D: Memory>(groups: &Groups<D>, zero: Zero) -> Self {
        let (index, parts) = (groups.shard.rank(), groups.shard.size());
        let zero = if parts == 1 { Zero::None } else { zero };
        Self { mesh: groups.mesh, zero, index, parts }
    }

    /// What is sharded; nothing where there is nobody to share with.
    pub(crate) fn zero(&self) -> Zero {
        self.zero
    }

    /// Parts of what is sharded.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// The elements of a flat buffer of `len` that this rank's optimizer updates.
    pub(crate) fn own(&self, len: usize) -> Range<usize> {
        let part = if self.zero == Zero::None { len } else { len / self.parts };
        let index = if self.zero == Zero::None { 0 } else { self.index };
        index * part..(index + 1) * part
    }

    /// The elements of the weights that lie on this rank between uses.
    pub(crate) fn weights(&self, len: usize) -> Range<usize> {
        if self.zero == Zero::Three { self.own(len) } else { 0..len }
    }

    /// The elements of the gradients that this rank accumulates.
    pub(crate) fn gradients(&self, len: usize) -> Range<usize> {
        if self.zero >= Zero::Two { self.own(len) } else { 0..len }
    }

    fn on_data_axes(&self, placement: Placement) -> Placements {
        let axes = [Axis::DpReplicate, Axis::DpShard].into_iter().filter(|a| self.mesh.degree(*a) > 1);
        axes.fold(Placements::REPLICATED, |p, axis| p.with(axis, placement))
    }

    /// Of what has a row for each of this rank's tokens.
    pub(crate) fn tokens(&self) -> Placements {
        self.on_data_axes(Placement::Shard(0, Cut::Even))
    }

    /// Of a sum over this rank's tokens, to which the others' are still to be added.
    pub(crate) fn owed(&self) -> Placements {
        self.on_data_axes(Placement::Partial(Reduction::Sum))
    }

    /// Of a flat buffer of which this rank holds `range` of `len`.
    pub(crate) fn held(&self, range: &Range<usize>, len: usize) -> Placements {
        if range.len() == len {
            return Placements::REPLICATED;
        }
        Placements::REPLICATED.with(Axis::DpShard, Placement::Shard(0, Cut::Even))
    }

    /// Of this rank's share of the work on what `replicas` hold alike, as [`share_of_blocks`] cuts it.
    pub(crate) fn shared_work(&self, placements: Placements) -> Placements {
        match self.mesh.degree(Axis::DpReplicate) {
            1 => placements,
            _ => placements.with(Axis::DpReplicate, Placement::Shard(0, Cut::Even)),
        }
    }
}

/// Whole blocks of `len` elements for one of `ranks` ranks that hold the same ones.
pub(crate) fn share_of_blocks(len: usize, rank: usize, ranks: usize) -> Range<usize> {
    let blocks = len / crate::flat::BLOCK;
    let at = |rank: usize| blocks * rank / ranks * crate::flat::BLOCK;
    at(rank)..at(rank + 1)
}

/// What of a parameter lies in a buffer that holds `held` of its unit's elements: its own elements, and where in the buffer
/// they are. Empty ranges where nothing does.
pub(crate) fn piece(
    layout: &FlatLayout,
    param: ParamId,
    held: &Range<usize>,
) -> (Range<usize>, Range<usize>) {
    let (_, segment) = layout.place(param);
    let all = segment.range();
    let (start, end) = (all.start.max(held.start), all.end.min(held.end));
    if start >= end {
        return (0..0, 0..0);
    }
    (start - all.start..end - all.start, start - held.start..end - held.start)
}
