//! What the ranks of a machine share: the board, and an arena for each of them.

use super::board::{Board, SUPERVISOR};
use super::group::LocalGroup;
use super::watch::Seat;
use crate::Groups;
use memwall_layout::Mesh;
use memwall_tensor::{Cpu, Region};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What the ranks of a machine share. Memory and descriptors go with the last process that has them, however it ends.
#[derive(Debug, Clone)]
pub struct Fabric {
    mesh: Mesh,
    timeout: Duration,
    board: Arc<Board>,
    /// By rank.
    arenas: Vec<Arc<Region>>,
}

impl Fabric {
    /// A new one: `arena` bytes of address space for each rank. A rank that has waited `timeout` for another gives up.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(mesh: Mesh, arena: u64, timeout: Duration) -> io::Result<Self> {
        let world = mesh.world();
        let arena = |rank| Region::shared(&format!("memwall-rank-{rank}"), arena).map(Arc::new);
        let arenas = (0..world).map(arena).collect::<io::Result<_>>()?;
        Ok(Self { mesh, timeout, board: Arc::new(Board::new(world)?), arenas })
    }

    /// The one whose memory files another process made: those of [`Fabric::files`], in their order.
    ///
    /// # Errors
    /// The operating system's, or another number of files than the mesh has ranks.
    pub fn open(mesh: Mesh, arena: u64, timeout: Duration, files: Vec<OwnedFd>) -> io::Result<Self> {
        let world = mesh.world();
        let mut files = files.into_iter();
        let missing = || io::Error::new(io::ErrorKind::InvalidInput, "a memory file is missing");
        let board = Board::open(files.next().ok_or_else(missing)?, world)?;
        let arenas =
            files.map(|file| Region::open(file, arena).map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        if arenas.len() == world {
            Ok(Self { mesh, timeout, board: Arc::new(board), arenas })
        } else {
            Err(missing())
        }
    }

    /// The memory files: the board's, and each rank's.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        let board = self.board.region();
        [board].into_iter().chain(self.arenas.iter().map(|a| &**a)).filter_map(Region::file).collect()
    }

    /// Number of ranks.
    pub(super) fn world(&self) -> usize {
        self.mesh.world()
    }

    /// The arena of a rank, for its device.
    pub fn arena(&self, rank: usize) -> &Arc<Region> {
        &self.arenas[rank]
    }

    /// The groups of a rank. It has ended once they are dropped: each rank takes them once.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn groups(&self, rank: usize) -> Groups<Cpu> {
        let (mesh, world) = (self.mesh, self.mesh.world());
        assert!(rank < world, "no rank {rank} in a world of {world}");
        let seat = Arc::new(Seat::new(self.board.clone(), rank, world, self.timeout));
        let members = Groups::<Cpu>::members(mesh, rank);
        let group = |kind: usize| {
            Groups::of_size(members[kind].len(), || {
                let axes = Groups::<Cpu>::axes(mesh, kind);
                LocalGroup::new(seat.clone(), self.arenas.clone(), kind, axes, members[kind].clone())
            })
        };
        Groups { mesh, rank, data: group(0), shard: group(1), replicate: group(2) }
    }

    /// Stops all ranks: the supervisor has a reason, such as the death of one of them.
    pub fn fail(&self, reason: &str) {
        self.board.fail(SUPERVISOR, reason);
    }

    /// Stops all ranks: this one has failed.
    pub fn fail_rank(&self, rank: usize, reason: &str) {
        self.board.fail(rank, reason);
    }

    /// The rank that failed first, and why; no rank where the supervisor stopped them.
    pub fn failure(&self) -> Option<(Option<usize>, String)> {
        self.board.failure().map(|(who, reason)| (Some(who).filter(|who| *who != SUPERVISOR), reason))
    }
}
