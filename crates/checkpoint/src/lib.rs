//! Saving and loading: checkpoints of a run, and Hugging Face model folders. safetensors only: no format
//! that can run code.
//!
//! A checkpoint is a folder `step-00000100` of safetensors files keyed by parameter name. It exists only
//! when its `manifest.json`, which holds the size and hash of every file, has been renamed into place:
//! whatever happens in mid-save, [`Store::latest`] finds the last complete one.

mod disk;
mod error;
mod hf;
mod manifest;
mod store;
mod tensor_file;

pub use disk::{Disk, DiskFile, Operation};
pub use error::CheckpointError;
pub use hf::{ModelFile, write_model};
pub use manifest::{FileRecord, Manifest, RunState};
pub use store::Store;
pub use tensor_file::{Entry, TensorFile};
