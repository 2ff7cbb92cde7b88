//! The trait of a group, and a collective that is under way.

use memwall_tensor::Tensor;
use memwall_tensor::device::Memory;
use thiserror::Error;

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank ends with the sum of all.
    AllReduce,
    /// Every rank ends with the concatenation of all parts.
    AllGather,
    /// Every rank ends with its part of the sum.
    ReduceScatter,
}

impl Collective {
    /// Name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
        }
    }
}

/// A collective that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} on rank {rank} of {size}: {reason}", collective.name())]
pub struct CommError {
    /// Which collective.
    pub collective: Collective,
    /// This rank in the group.
    pub rank: usize,
    /// Ranks in the group.
    pub size: usize,
    /// What happened.
    pub reason: String,
}

/// A collective that has been started. The buffers belong to it until [`Group::wait`].
#[derive(Debug)]
#[must_use = "a collective that was started must be waited for"]
pub struct Pending<D: Memory> {
    pub(crate) collective: Collective,
    pub(crate) buffer: Tensor<D>,
}

impl<D: Memory> Pending<D> {
    /// What is under way.
    pub fn collective(&self) -> Collective {
        self.collective
    }
}

/// The ranks along some mesh axes, as one of them sees them.
///
/// Sums of i64 are integer sums; sums of f32 are added in rank order.
pub trait Group<D: Memory>: Send {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// Starts a collective on `buffer`, in place: for [`Collective::AllGather`] each rank's part lies at its
    /// place already, and after [`Collective::ReduceScatter`] only this rank's part holds sums. The length is
    /// a multiple of the size for these two.
    ///
    /// # Errors
    /// The transport failed.
    fn start(&self, collective: Collective, buffer: Tensor<D>) -> Result<Pending<D>, CommError>;

    /// Waits for a collective and gives its buffer back.
    ///
    /// # Errors
    /// The transport failed.
    fn wait(&self, pending: Pending<D>) -> Result<Tensor<D>, CommError>;
}
