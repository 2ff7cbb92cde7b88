//! The manifest: what makes a folder a checkpoint.

use crate::error::{At, CheckpointError};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Name in the folder.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// BLAKE3, hexadecimal.
    pub blake3: String,
}

/// Where a run is, apart from its tensors. The learning rate and all random numbers are functions of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Steps done.
    pub step: u64,
    /// Samples that they consumed: the next step begins with this one.
    pub samples: u64,
    /// Valid targets trained on.
    pub tokens: u64,
    /// Hash of the tokenized data.
    pub data: String,
    /// The resolved job.
    pub job: String,
}

/// What makes a folder a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the folder.
    pub format: u32,
    /// Version of memwall that wrote it.
    pub memwall: String,
    /// Where the run is.
    pub state: RunState,
    /// All files but this one.
    pub files: Vec<FileRecord>,
}

impl Manifest {
    /// File name of the manifest.
    pub const NAME: &'static str = "manifest.json";

    pub(crate) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(Self::NAME);
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let manifest: Self = serde_json::from_str(&text)
            .map_err(|e| CheckpointError::malformed(&path, format!("is not a manifest: {e}")))?;
        if manifest.format != FORMAT {
            let reason = format!("has format {}; this version reads format {FORMAT}", manifest.format);
            return Err(CheckpointError::malformed(path, reason));
        }
        Ok(manifest)
    }

    /// Checks size and hash of every file.
    pub(crate) fn verify(&self, folder: &Path) -> Result<(), CheckpointError> {
        for record in &self.files {
            let path = folder.join(&record.name);
            let damaged = |what: String| {
                let reason = format!(
                    "is damaged: {what}. To go on from the checkpoint before, delete the folder {}",
                    folder.display()
                );
                CheckpointError::malformed(&path, reason)
            };
            let mut file = File::open(&path).at("open", &path)?;
            let size = file.metadata().at("read", &path)?.len();
            if size != record.size {
                return Err(damaged(format!("it has {size} bytes instead of {}", record.size)));
            }
            let mut hash = blake3::Hasher::new();
            let mut chunk = vec![0; 1 << 16];
            loop {
                match file.read(&mut chunk).at("read", &path)? {
                    0 => break,
                    n => hash.update(&chunk[..n]),
                };
            }
            if hash.finalize().to_hex().as_str() != record.blake3 {
                return Err(damaged("its contents do not have the recorded hash".into()));
            }
        }
        Ok(())
    }
}
