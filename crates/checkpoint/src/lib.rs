//! Saving and loading: checkpoints of a run, and Hugging Face model folders. safetensors only: no format
//! that can run code.
//!
//! A checkpoint is a folder `step-00000100` of safetensors files keyed by parameter name. It exists only
//! when its `manifest.json`, which holds the size and hash of every file, has been renamed into place:
//! whatever happens in mid-save, [`Store::latest`] finds the last complete one. Ranks that share a state save their parts
//! side by side, and load what they hold from whatever parts there are. A save goes on while the ranks train ([`Saving`]).
//!
//! What is in a checkpoint can be read without a rank ([`SavedState`]), compared ([`diff()`]), checked ([`verify()`]), and written
//! in other parts ([`convert()`]).

mod convert;
mod diff;
mod disk;
mod error;
mod export;
mod files;
mod float;
mod hash;
mod header;
mod index;
mod load;
mod manifest;
mod model_folder;
mod names;
mod parts;
mod pieces;
mod save;
mod saved;
mod store;
mod tensor_file;
mod tensor_write;
mod verify;
mod write;

pub use convert::{Beginning, begin_with, convert};
pub use diff::{Deviation, Differences, Tensors, diff, is_moment};
pub use disk::{Disk, DiskFile, Operation};
pub use error::CheckpointError;
pub use export::{Export, Source, write_model};
pub use float::FloatType;
pub use manifest::{FileRecord, Manifest, RunState, SavedBy, SavedSchedule, TensorRecord};
pub use model_folder::{ModelFile, ModelWeights};
pub use save::{Pace, Saved, Saving};
pub use saved::SavedState;
pub use store::Store;
pub use tensor_file::TensorFile;
pub use verify::{Verified, verify};
