//! `memwall checkpoint`: looks at checkpoints, checks, converts and compares them.

mod convert;
mod diff;
mod inspect;
mod verify;

use crate::args::CheckpointCommand;
use crate::failure::{Failure, Outcome};
use memwall_checkpoint::{Disk, Manifest, ModelFile, Store};
use std::path::{Path, PathBuf};

/// Carries out one of the commands.
pub(crate) fn checkpoint(command: &CheckpointCommand) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Inspect(a) => inspect::inspect(a),
        CheckpointCommand::Verify(a) => verify::verify(a),
        CheckpointCommand::Convert(a) => convert::convert(a),
        CheckpointCommand::Diff(a) => diff::diff(a),
    }
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The folder of a checkpoint.
    Checkpoint(PathBuf),
    /// A Hugging Face model folder.
    Model(PathBuf),
}

impl Place {
    /// Finds out what `path` is: a checkpoint; a run folder or its `checkpoints`, of which the last complete one is meant; or
    /// a model folder.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let refused = |what: &str| Failure::Refused(format!("{} {what}", path.display()));
        if !path.exists() {
            return Err(refused("does not exist; give a checkpoint, a run folder or a model folder"));
        }
        if !path.is_dir() {
            return Err(refused(
                "is a file, and a checkpoint is a folder: give one, a run folder or a model folder",
            ));
        }
        // A name that links to it is not what messages should tell to delete.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.join(Manifest::NAME).exists() {
            return Ok(Place::Checkpoint(path.clone()));
        }
        for root in [path.join("checkpoints"), path.clone()] {
            let store = Store::new(&root, 1, Disk::default());
            if let Some(step) = store.latest().refuse()? {
                return Ok(Place::Checkpoint(store.folder(step)));
            }
        }
        if path.join("config.json").exists() && ModelFile::is_in(path) {
            return Ok(Place::Model(path.clone()));
        }
        let cut_off = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"));
        Err(refused(if cut_off {
            "is no checkpoint: it has no manifest.json, which is written last; the save was cut off"
        } else {
            "is neither a checkpoint, nor a run folder that has a complete one, nor a Hugging Face model folder"
        }))
    }

    /// The same where only a checkpoint will do.
    pub(crate) fn checkpoint(path: &Path) -> Result<PathBuf, Failure> {
        match Self::of(path)? {
            Place::Checkpoint(folder) => Ok(folder),
            Place::Model(_) => Err(Failure::Refused(format!(
                "{} is a model folder, and a checkpoint is needed here",
                path.display()
            ))),
        }
    }
}
