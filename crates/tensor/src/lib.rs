//! Tensors, the devices that compute on them, and the ledger that owns every byte.
//!
//! - [`Tensor`] knows shape, placement and (through its buffer) dtype and category.
//! - [`ops`] checks shapes and placements once, for all devices, and calls the device.
//! - [`Device`] is what a device must do: allocate, and a decoder's operations with their backward.
//! - [`Cpu`] computes. [`Dry`] allocates and counts, and never computes: the same program on it predicts
//!   what the program on `Cpu` will cost.
//! - [`Ledger`] charges every allocation to a [`Category`] and enforces the budget; its [`Arena`] decides
//!   offsets by one pure piece of code, so that a prediction covers fragmentation too.

mod arena;
mod category;
mod cpu;
pub mod device;
mod dry;
mod dtype;
mod error;
pub mod fixed;
mod float;
mod ledger;
pub mod math;
pub mod ops;
mod slice;
mod tensor;

pub use arena::Arena;
pub use category::{ByCategory, Category};
pub use cpu::{Cpu, Family, Traffic};
pub use device::Device;
pub use dry::Dry;
pub use dtype::DType;
pub use error::{Error, ShapeError, TypeError};
pub use float::{Float, bf16};
pub use ledger::{Block, Event, Ledger, LedgerState, OutOfMemory};
pub use slice::{Slice, SliceMut};
pub use tensor::{Shape, Tensor, View, ViewMut};

/// What of a device decides how much memory its own working space takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// Threads that compute.
    pub threads: usize,
}

impl Description {
    /// Bytes of working space that the kernels of one thread need: packed operands of a matrix product, or
    /// the tiles of attention, whichever is more.
    pub const SCRATCH_BYTES_PER_THREAD: usize = cpu::SCRATCH_FLOATS * 4;

    /// Bytes of working space, reserved when the device is made.
    pub fn scratch_bytes(&self) -> usize {
        self.threads * Self::SCRATCH_BYTES_PER_THREAD
    }
}
