//! The manifest: what makes a folder a checkpoint.

use crate::error::{At, CheckpointError, shown};
use crate::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

/// The format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Name in the folder.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// BLAKE3, hexadecimal.
    pub blake3: String,
    /// Of a file that holds parts of tensors: the number of each part's first element in its tensor. Empty where tensors are
    /// whole.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slices: BTreeMap<String, u64>,
}

/// Where a run is, apart from its tensors. The learning rate and all random numbers are functions of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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

/// A manifest as it stands in its file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    /// BLAKE3 of the manifest as compact JSON, hexadecimal.
    blake3: String,
}

impl Manifest {
    /// File name of the manifest.
    pub const NAME: &'static str = "manifest.json";

    /// The contents of its file: with a hash of itself, and in one form only, so that no changed bit passes.
    ///
    /// # Errors
    /// None are known: numbers and texts always have a JSON form.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let blake3 = blake3::hash(serde_json::to_string(self)?.as_bytes()).to_hex().to_string();
        Ok(serde_json::to_string_pretty(&Sealed { manifest: self.clone(), blake3 })? + "\n")
    }

    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// There is none, it is of another format, or anything in it was changed since it was written.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(Self::NAME);
        let text = files::read(&path)?;
        let bad = |what: String| CheckpointError::malformed(&path, format!("{what}. {}", advice(folder)));
        let Sealed { manifest, .. } = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("is not a manifest: {}", shown(&e.to_string()))))?;
        if manifest.to_text().map_err(|e| bad(e.to_string()))?.as_bytes() != text {
            return Err(bad("is damaged: its contents do not have the recorded hash".into()));
        }
        if manifest.format != FORMAT {
            return Err(bad(format!("has format {}; this version reads format {FORMAT}", manifest.format)));
        }
        Ok(manifest)
    }

    /// Checks that the folder is the checkpoint of `step`, that `names` are its files and there are no others, and
    /// size and hash of each.
    pub(crate) fn verify(&self, folder: &Path, step: u64, names: &[String]) -> Result<(), CheckpointError> {
        let bad = |what: String| {
            let reason = format!("{what}. {}", advice(folder));
            Err(CheckpointError::malformed(folder.join(Self::NAME), reason))
        };
        if self.state.step != step {
            return bad(format!("is of step {}, and stands in the folder of step {step}", self.state.step));
        }
        if !self.files.iter().map(|f| &f.name).eq(names) {
            return bad(format!(
                "does not list the files of a checkpoint, which are {}",
                names.join(" and ")
            ));
        }
        for entry in fs::read_dir(folder).at("read the folder", folder)? {
            let name = entry.at("read the folder", folder)?.file_name();
            if name != Self::NAME && !names.iter().any(|n| name == n.as_str()) {
                let name = shown(&name.to_string_lossy());
                let reason = format!("holds {name}, which is not part of the checkpoint; move it elsewhere");
                return Err(CheckpointError::malformed(folder, reason));
            }
        }
        self.files.iter().try_for_each(|record| record.verify(folder))
    }
}

impl FileRecord {
    fn verify(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(&self.name);
        let damaged = |what: String| {
            CheckpointError::malformed(&path, format!("is damaged: {what}. {}", advice(folder)))
        };
        let (mut file, size) = files::open(&path)?;
        if size != self.size {
            return Err(damaged(format!("it has {size} bytes instead of {}", self.size)));
        }
        let mut hash = blake3::Hasher::new();
        let mut chunk = vec![0; 1 << 16];
        loop {
            match file.read(&mut chunk).at("read", &path)? {
                0 => break,
                n => hash.update(&chunk[..n]),
            };
        }
        if hash.finalize().to_hex().as_str() != self.blake3 {
            return Err(damaged("its contents do not have the recorded hash".into()));
        }
        Ok(())
    }
}

fn advice(folder: &Path) -> String {
    format!("To go on from the checkpoint before, delete the folder {}", folder.display())
}
