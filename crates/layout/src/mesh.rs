//! The mesh: how many ranks lie along each named axis.

/// An axis of the mesh. The order is that of rank numbers: the last varies fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Pipeline stages.
    Pp,
    /// Replicas of the whole sharding group.
    DpReplicate,
    /// Ranks over which parameters are sharded.
    DpShard,
    /// Parts of the sequence.
    Cp,
    /// Parts of each matrix.
    Tp,
    /// Groups of experts.
    Ep,
}

impl Axis {
    /// All axes, slowest first.
    pub const ALL: [Axis; 6] = [Axis::Pp, Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp, Axis::Ep];

    /// Name in job files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Pp => "pp",
            Axis::DpReplicate => "dp_replicate",
            Axis::DpShard => "dp_shard",
            Axis::Cp => "cp",
            Axis::Tp => "tp",
            Axis::Ep => "ep",
        }
    }

    /// Whether ranks along it hold different sequences, and each holds them whole.
    pub const fn is_data(self) -> bool {
        matches!(self, Axis::DpReplicate | Axis::DpShard | Axis::Ep)
    }
}

/// Number of ranks along each axis. `ep` is a view of the data axes, not a factor of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    degrees: [usize; 6],
}

impl Mesh {
    /// One device: every axis has one rank.
    pub const SINGLE: Mesh = Mesh { degrees: [1; 6] };

    /// `dp_replicate` replicas of `dp_shard` ranks, and nothing else.
    pub fn data_parallel(dp_replicate: usize, dp_shard: usize) -> Self {
        let mut mesh = Self::SINGLE;
        mesh.degrees[Axis::DpReplicate as usize] = dp_replicate;
        mesh.degrees[Axis::DpShard as usize] = dp_shard;
        mesh
    }

    /// Where rank `rank` lies along `axis`, which is a factor of the world.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        let faster = Axis::ALL.iter().filter(|a| **a as u8 > axis as u8 && **a != Axis::Ep);
        rank / faster.map(|a| self.degree(*a)).product::<usize>() % self.degree(axis)
    }

    /// Whether two ranks differ along these axes at most.
    pub fn differ_along(&self, a: usize, b: usize, axes: &[Axis]) -> bool {
        let others = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Ep && !axes.contains(axis));
        others.into_iter().all(|axis| self.coordinate(a, axis) == self.coordinate(b, axis))
    }

    /// Ranks along `axis`.
    pub fn degree(&self, axis: Axis) -> usize {
        self.degrees[axis as usize]
    }

    /// Ranks in all: pp x dp_replicate x dp_shard x cp x tp.
    pub fn world(&self) -> usize {
        Axis::ALL.iter().filter(|a| **a != Axis::Ep).map(|a| self.degree(*a)).product()
    }

    /// Ranks that see different samples: dp_replicate x dp_shard.
    pub fn data_ranks(&self) -> usize {
        self.degree(Axis::DpReplicate) * self.degree(Axis::DpShard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_device_is_a_world_of_one() {
        assert_eq!((Mesh::SINGLE.world(), Mesh::SINGLE.data_ranks()), (1, 1));
    }

    #[test]
    fn a_rank_has_one_place_and_the_last_axis_varies_fastest() {
        let mesh = Mesh::data_parallel(2, 3);
        let places: Vec<_> =
            (0..6).map(|r| [Axis::DpReplicate, Axis::DpShard].map(|a| mesh.coordinate(r, a))).collect();
        assert_eq!(places, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        let along = |axis| (0..6).filter(|r| mesh.differ_along(4, *r, &[axis])).collect::<Vec<_>>();
        assert_eq!((along(Axis::DpReplicate), along(Axis::DpShard)), (vec![1, 4], vec![3, 4, 5]));
    }
}
