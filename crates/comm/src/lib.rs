//! How ranks talk: the [`Group`] trait and its transports.
//!
//! A group is the ranks along one or more mesh axes. `start` takes the buffers of a collective and returns a
//! [`Pending`]; `wait` gives them back. Which collectives a step makes, and in which order, is the same for
//! all ranks of a group.
//!
//! - [`Solo`]: a group of one. Every collective is complete at once and moves nothing.
//! - [`DryGroup`]: the dry twin of a group of any size. It moves nothing either, but counts the bytes that the
//!   real one puts on the wire.

mod dry;
mod group;
mod solo;

pub use dry::{DryGroup, Traffic};
pub use group::{Collective, CommError, Group, Pending};
pub use solo::Solo;
