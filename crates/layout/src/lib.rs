//! How a model is cut: the mesh and its axes, and the placement of every tensor on each axis.
//!
//! Nothing here knows a tensor's data or a transport. [`rules`] states, once for all devices, which
//! placements an operation accepts and which it yields.

mod cut;
mod mesh;
mod placement;
pub mod rules;

pub use cut::Cut;
pub use mesh::{Axis, Mesh};
pub use placement::{Placement, PlacementError, Placements, Reduction};
