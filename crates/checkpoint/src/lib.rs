//! Saving and loading: checkpoints of a run, and Hugging Face model folders. safetensors only: no format
//! that can run code.
//!
//! A checkpoint is a folder `step-00000100` of safetensors files keyed by parameter name. It exists only
//! when its `manifest.json`, which holds the size and hash of every file, has been renamed into place:
//! whatever happens in mid-save, [`Store::latest`] finds the last complete one. Ranks that share a state save their parts
//! side by side, and load what they hold from whatever parts there are.

mod disk;
mod error;
mod export;
mod files;
mod float;
mod header;
mod index;
mod manifest;
mod model_folder;
mod names;
mod pieces;
mod store;
mod tensor_file;
mod tensor_write;

pub use disk::{Disk, DiskFile, Operation};
pub use error::CheckpointError;
pub use export::{Export, Source, write_model};
pub use float::FloatType;
pub use manifest::{FileRecord, Manifest, RunState};
pub use model_folder::ModelFile;
pub use store::{SavedWeights, Store};
pub use tensor_file::TensorFile;
