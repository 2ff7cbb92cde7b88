//! Tensors, the devices that compute on them, and the ledger that owns every byte.
//!
//! - [`Tensor`] knows shape, placement and (through its buffer) dtype and category.
//! - [`ops`] checks shapes and placements once, for all devices, and calls the device.
//! - [`Device`] is what a device must do: allocate, and a decoder's operations with their backward.
//! - [`Cpu`] computes. [`Dry`] allocates and counts, and never computes: the same program on it predicts
//!   what the program on `Cpu` will cost.
//! - `queued::Queued`, for tests alone (feature `queued`), computes what [`Cpu`] does, later and on queues, as a GPU would.
//! - [`Ledger`] charges every allocation to a [`Category`] and enforces the budget; its [`Arena`] decides
//!   offsets by one pure piece of code, so that a prediction covers fragmentation too. It knows the [`Moment`].

mod account;
mod arena;
mod category;
mod cpu;
pub mod device;
mod dry;
mod dtype;
mod error;
pub mod fixed;
mod float;
mod follow;
mod ledger;
pub mod math;
mod moment;
pub mod ops;
#[cfg(feature = "queued")]
pub mod queued;
mod slice;
mod tensor;

pub use account::{Account, Block, Change, Event, LedgerState, OutOfMemory};
pub use arena::Arena;
pub use category::{ByCategory, Category};
pub use cpu::{Cpu, Family, Region, Traffic, allowed_cores};
pub use device::Device;
pub use dry::{Dry, Flops};
pub use dtype::DType;
pub use error::{Error, ShapeError, TypeError};
pub use float::{Float, bf16};
pub use follow::{Difference, Follow};
pub use ledger::Ledger;
pub use moment::{Moment, Phase};
pub use slice::{Lent, Slice, SliceMut};
pub use tensor::{Shape, Tensor, View, ViewMut};

/// What of a device decides how much memory its own working space takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// Threads that compute.
    pub threads: usize,
}

impl Description {
    /// Bytes of working space, reserved when the device is made: packed blocks of a matrix product, which threads share, and
    /// for each of them a strip of an operand or the tiles of attention, whichever is more.
    pub fn scratch_bytes(&self) -> usize {
        (cpu::SHARED_FLOATS + self.threads * cpu::SCRATCH_FLOATS) * 4
    }
}
