//! The job file: one TOML file that says what to train, on what, and within which memory.
//!
//! A job takes three forms, each in a file of its own:
//!
//! 1. *written* (`written.rs`): the TOML text with the `--set` overrides merged in. Nothing is known
//!    about it but that it is TOML.
//! 2. *resolved* ([`ResolvedJob`]): every key with its value, defaults filled in, each of the right
//!    type and range. It goes back to TOML as `job.toml` of the run folder.
//! 3. *validated* ([`Job`]): the values also go together, and have become plain Rust types. This form
//!    alone reaches the engine.
//!
//! All keys stand in one table, [`schema::KEYS`]. Each step reports every problem it finds, not just
//! the first, as a [`JobError`].

mod bytes;
mod error;
mod kind;
mod names;
mod parallel;
mod presence;
mod relations;
mod resolved;
pub mod schema;
mod sources;
mod to_json;
mod validated;
mod values;
mod written;

#[cfg(test)]
mod every_key;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use bytes::{exact_bytes, parse_bytes, show_bytes};
pub use error::JobError;
pub use parallel::ParallelJob;
pub use resolved::ResolvedJob;
pub use sources::{DataFrom, SourceJob};
pub use validated::{
    CheckpointJob, DataJob, EarlyStop, Exactness, ExportJob, ExportType, Job, Length, MemoryJob, ModelSource,
    OptimizerJob, OptimizerKind, Packing, Precision, PrecisionJob, Recompute, RunJob, Schedule, Span,
    TrainJob,
};

/// Reads the job file at `path`, with each `section.key=value` of `sets` put over what it says.
pub fn load(path: &Path, sets: &[String]) -> Result<ResolvedJob, JobError> {
    resolved::resolve(written::read(path, sets)?)
}

/// Reads a job from `text` as [`load`] does from a file; `path` is what messages name.
pub fn parse(path: &Path, text: &str, sets: &[String]) -> Result<ResolvedJob, JobError> {
    resolved::resolve(written::parse(path, text, sets)?)
}
