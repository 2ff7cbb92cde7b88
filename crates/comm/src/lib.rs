//! How ranks talk: the [`Group`] trait and its transports.
//!
//! A group is the ranks along one or more mesh axes. `start` takes a [`Call`], a collective with its buffers, and returns a
//! [`Pending`]; `wait` gives the buffers back. Which collectives a step makes, and in which order, is the same for all ranks
//! of a group.
//!
//! - [`Solo`]: a group of one. Every collective is complete at once and moves nothing.
//! - [`DryGroup`]: the dry twin of a group of any size. It moves nothing either, but counts the bytes that the
//!   real one moves between ranks.
//! - [`local`]: ranks of one machine, which read each other's memory in place.
//!
//! [`Groups`] are all that a rank is in.

mod call;
mod dry;
mod group;
mod groups;
pub mod local;
mod solo;
mod traffic;

pub use call::{Call, Collective};
pub use dry::DryGroup;
pub use group::{Clock, CommError, Group, Pending};
pub use groups::Groups;
pub use solo::Solo;
pub use traffic::{Traffic, bytes_moved, share};
