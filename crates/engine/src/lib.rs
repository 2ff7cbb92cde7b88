//! The training step: written once, generic over the device and the groups.
//!
//! On a real device it trains; on the dry one the same code predicts. A step issues the same operations,
//! allocations and collectives whatever the data: nothing in here reads a device value before its end.
//!
//! - [`Rank`] is one rank's whole state. [`Rank::step`] is the training step, [`Rank::evaluate`] the held-out
//!   loss.
//! - The units ([`mod@unit`]) compute; what they keep for backward is a [`Keep`], a value.
//! - [`predict`] says what a run will do to memory: every block, in order.
//! - [`Generator`] writes text with a key/value cache, from the same pieces of the same units.

mod blame;
mod common;
mod error;
mod flat;
mod gather;
mod generate;
mod gradients;
mod keep;
mod micro_batch;
mod predict;
mod rank;
mod sample;
mod schedule;
mod settings;
mod shares;
mod sink;
mod snapshot;
mod stack;
mod step;
pub mod unit;
mod update;
mod weights;

pub use common::STATISTICS;
pub use error::EngineError;
pub use flat::{FlatLayout, FlatUnit, Segment};
pub use generate::Generator;
pub use keep::Keep;
pub use predict::{Alive, Events, Place, Prediction, predict, predict_by_running};
pub use rank::Rank;
pub use sample::{Sampler, Sampling};
pub use schedule::{Decay, Schedule};
pub use settings::{AdamWSettings, Load, MicroBatch, Part, Precision, Settings, StepReport, Zero};
pub use snapshot::Snapshot;
pub use stack::Parameters;
pub use weights::{Lease, Weights};
