//! The groups that a rank is in.

use crate::{Clock, Group, Solo, Traffic};
use memwall_layout::{Axis, Mesh};
use memwall_tensor::device::Memory;
use std::fmt;

/// The groups that a rank is in, and its place in the mesh.
pub struct Groups<D: Memory> {
    /// How many ranks lie along each axis.
    pub mesh: Mesh,
    /// This rank's number among all.
    pub rank: usize,
    /// All ranks that hold different samples: along `dp_replicate` and `dp_shard`.
    pub data: Box<dyn Group<D>>,
    /// Those that hold the parts of the same state: along `dp_shard`.
    pub shard: Box<dyn Group<D>>,
    /// Those that hold the same part: along `dp_replicate`.
    pub replicate: Box<dyn Group<D>>,
}

impl<D: Memory> Groups<D> {
    /// The axes of [`Groups::data`], [`Groups::shard`] and [`Groups::replicate`].
    pub const AXES: [&'static [Axis]; 3] =
        [&[Axis::DpReplicate, Axis::DpShard], &[Axis::DpShard], &[Axis::DpReplicate]];

    /// The axes of a group along which there is more than one rank.
    pub fn axes(mesh: Mesh, group: usize) -> Vec<Axis> {
        Self::AXES[group].iter().copied().filter(|axis| mesh.degree(*axis) > 1).collect()
    }

    /// Of each group of rank `rank`, in the order of [`Groups::AXES`]: the ranks in it, by their numbers among all.
    pub fn members(mesh: Mesh, rank: usize) -> [Vec<usize>; 3] {
        Self::AXES
            .map(|axes| (0..mesh.world()).filter(|other| mesh.differ_along(rank, *other, axes)).collect())
    }

    /// Of a rank that is alone.
    pub fn solo() -> Self
    where
        D::Buf: Send,
    {
        let solo = || Box::new(Solo) as Box<dyn Group<D>>;
        Self { mesh: Mesh::SINGLE, rank: 0, data: solo(), shard: solo(), replicate: solo() }
    }

    /// A group, or [`Solo`] in the place of one of one rank.
    pub(crate) fn of_size<G: Group<D> + 'static>(size: usize, group: impl FnOnce() -> G) -> Box<dyn Group<D>>
    where
        D::Buf: Send,
    {
        if size == 1 { Box::new(Solo) } else { Box::new(group()) }
    }

    /// What this rank has moved along each group's axes, in the order of [`Groups::AXES`].
    pub fn traffic(&self) -> [Traffic; 3] {
        [&self.data, &self.shard, &self.replicate].map(|g| g.traffic())
    }

    /// Time spent in all groups.
    pub fn clock(&self) -> Clock {
        let clocks = [&self.data, &self.shard, &self.replicate].map(|g| g.clock());
        clocks.iter().fold(Clock::default(), |sum, c| Clock {
            inside: sum.inside + c.inside,
            waiting: sum.waiting + c.waiting,
        })
    }
}

impl<D: Memory> fmt::Debug for Groups<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {:?}", self.rank, self.mesh)
    }
}
