//! The trait of a group, and a collective that is under way.

use crate::{Call, Collective, Traffic};
use memwall_layout::Axis;
use memwall_tensor::DType;
use memwall_tensor::device::Memory;
use std::fmt::Debug;
use std::time::Duration;
use thiserror::Error;

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

impl CommError {
    /// Why a collective failed on a rank of a group.
    pub fn new(collective: Collective, rank: usize, size: usize, reason: impl Into<String>) -> Self {
        Self { collective, rank, size, reason: reason.into() }
    }
}

/// A collective that has been started. Its buffers belong to it until [`Group::wait`].
///
/// Other ranks may be reading them: dropped without waiting, it fails the group.
#[derive(Debug)]
#[must_use = "a collective that was started must be waited for"]
pub struct Pending<D: Memory> {
    pub(crate) call: Call<D>,
    /// The transport's number for it.
    pub(crate) number: u64,
    pub(crate) promise: Option<Box<dyn Promise>>,
}

/// A transport's promise to the other ranks that this one will wait: dropped without being kept, it tells them.
pub(crate) trait Promise: Send + Debug {
    /// The rank has waited.
    fn keep(self: Box<Self>);
}

impl<D: Memory> Pending<D> {
    /// What is under way.
    pub fn collective(&self) -> Collective {
        self.call.collective()
    }

    /// Of how many elements, of which type.
    pub fn size(&self) -> (usize, DType) {
        self.call.size()
    }
}

/// How a rank's time in collectives was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// In collectives, waiting included.
    pub inside: Duration,
    /// Of it waiting for other ranks.
    pub waiting: Duration,
}

/// The ranks along some mesh axes, as one of them sees them.
///
/// Sums of i64 are fixed-point sums in which overflow sticks; sums of f32 are added in the order of the ranks, those of bf16
/// too, in f32, and rounded once. All ranks of a group start the same collectives in the same order, and wait for them in the
/// same order, which may be another: what a rank does for a sum it does while it waits.
pub trait Group<D: Memory>: Send {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// The mesh axes that the group lies along.
    fn axes(&self) -> &[Axis];

    /// Starts a collective on buffers of `device`.
    ///
    /// # Errors
    /// Buffers that do not fit it, by size, type or placement; the transport failed.
    fn start(&self, device: &D, call: Call<D>) -> Result<Pending<D>, CommError>;

    /// Waits for a collective and gives its buffers back.
    ///
    /// # Errors
    /// Ranks that do something else, or nothing; the transport failed.
    fn wait(&self, device: &D, pending: Pending<D>) -> Result<Call<D>, CommError>;

    /// Both.
    ///
    /// # Errors
    /// Theirs.
    fn carry_out(&self, device: &D, call: Call<D>) -> Result<Call<D>, CommError> {
        self.wait(device, self.start(device, call)?)
    }

    /// What this rank has moved between its memory and others' so far.
    fn traffic(&self) -> Traffic;

    /// Time spent so far.
    fn clock(&self) -> Clock;
}
