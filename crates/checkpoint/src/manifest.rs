//! The manifest: what makes a folder a checkpoint.

use crate::error::{At, CheckpointError, shown};
use crate::files;
use crate::hash::Hash;
use crate::tensor_file::TensorFile;
use memwall_engine::{Decay, Schedule};
use memwall_model::{ModelConfig, ModelSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 2;

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Name in the folder.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// XXH3 (128 bits) of all before the first tensor, hexadecimal.
    pub header: String,
    /// Its tensors: with the header they are the whole file.
    pub tensors: BTreeMap<String, TensorRecord>,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Number of its first element in the whole tensor, of which another file may hold other elements.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first: u64,
    /// XXH3 (128 bits) of its bytes, hexadecimal.
    pub xxh3: String,
}

impl FileRecord {
    /// What a file of whole tensors comes to, as it is.
    ///
    /// # Errors
    /// It is no safetensors file of floats, or cannot be read.
    pub fn of(path: &Path) -> Result<Self, CheckpointError> {
        let file = TensorFile::open(path)?;
        let (_, size) = files::open(path)?;
        let tensors = file
            .names()
            .map(|name| Ok((name.to_owned(), TensorRecord { first: 0, xxh3: file.hash(name)?.0 })))
            .collect::<Result<_, CheckpointError>>()?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, size, header: file.header_hash()?, tensors })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(first: &u64) -> bool {
    *first == 0
}

/// Where a run is, apart from its tensors. All random numbers are functions of it and of the seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Steps done.
    pub step: u64,
    /// Samples that they consumed: the next step begins with this one.
    pub samples: u64,
    /// Valid targets trained on.
    pub tokens: u64,
    /// Hash of the tokenized data; empty where no step has been done.
    pub data: String,
    /// The resolved job.
    pub job: String,
    /// The program that wrote it.
    pub code: String,
}

/// How the ranks that saved it had divided the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedBy {
    /// Groups of ranks that held the same.
    pub dp_replicate: usize,
    /// Ranks in such a group.
    pub dp_shard: usize,
    /// Stage of ZeRO.
    pub zero: u8,
}

/// The learning rates of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSchedule {
    /// How the rate falls: constant, linear, cosine or wsd.
    pub decay: String,
    /// Steps over which a wsd falls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decay_steps: u64,
    /// Rate at the end of the warm-up.
    pub peak: f64,
    /// Rate that the fall would reach one step after the last.
    pub last: f64,
    /// Steps over which the rate rises.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// Rate of the step to come.
    pub next: f64,
}

impl SavedSchedule {
    /// Of a run that has done `step` steps.
    pub(crate) fn of(schedule: &Schedule, step: u64) -> Self {
        let (decay, decay_steps) = match schedule.decay {
            Decay::Constant => ("constant", 0),
            Decay::Linear => ("linear", 0),
            Decay::Cosine => ("cosine", 0),
            Decay::Stable { decay } => ("wsd", decay),
        };
        Self {
            decay: decay.into(),
            decay_steps,
            peak: schedule.peak,
            last: schedule.last,
            warmup: schedule.warmup,
            steps: schedule.steps,
            next: schedule.at(step + 1),
        }
    }
}

/// What makes a folder a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of the folder.
    pub format: u32,
    /// Where the run is.
    pub state: RunState,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Learning rates.
    pub schedule: SavedSchedule,
    /// How the state was divided.
    pub layout: SavedBy,
    /// The model's config.json. Its vocabulary is the true one, without padding.
    pub model: Value,
    /// Parameters that are not trained, and have no moments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// All files but this one.
    pub files: Vec<FileRecord>,
}

/// A manifest as it stands in its file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    /// XXH3 (128 bits) of the manifest as compact JSON, hexadecimal.
    xxh3: String,
}

/// Of a manifest of any format.
#[derive(Deserialize)]
struct AnyFormat {
    manifest: Numbered,
}

#[derive(Deserialize)]
struct Numbered {
    format: u32,
}

impl Manifest {
    /// File name of the manifest.
    pub const NAME: &'static str = "manifest.json";

    /// The contents of its file: with a hash of itself, and in one form only, so that no changed bit passes.
    ///
    /// # Errors
    /// None are known: numbers and texts always have a JSON form.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let xxh3 = Hash::of(serde_json::to_string(self)?.as_bytes());
        Ok(serde_json::to_string_pretty(&Sealed { manifest: self.clone(), xxh3 })? + "\n")
    }

    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// There is none, it is of another format, or anything in it was changed since it was written.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(Self::NAME);
        let text = files::read(&path)?;
        let bad = |what: String| CheckpointError::malformed(&path, format!("{what}. {}", advice(folder)));
        if let Ok(AnyFormat { manifest: Numbered { format } }) = serde_json::from_slice(&text)
            && format != FORMAT
        {
            return Err(bad(format!("has format {format}; this version reads format {FORMAT}")));
        }
        let Sealed { manifest, .. } = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("is not a manifest: {}", shown(&e.to_string()))))?;
        if manifest.to_text().map_err(|e| bad(e.to_string()))?.as_bytes() != text {
            return Err(bad("is damaged: its contents do not have the recorded hash".into()));
        }
        Ok(manifest)
    }

    /// The model that it is of.
    ///
    /// # Errors
    /// The config is not one that this version knows.
    pub fn spec(&self, folder: &Path) -> Result<ModelSpec, CheckpointError> {
        let path = folder.join(Self::NAME);
        let config = ModelConfig::from_value(&self.model).map_err(|e| {
            CheckpointError::malformed(&path, format!("has a model that cannot be read: {e}"))
        })?;
        let mut spec = ModelSpec::new(config);
        for name in &self.frozen {
            let Some(param) = spec.params.iter_mut().find(|p| p.name == *name) else {
                let reason = format!("says that {} is frozen, which the model does not have", shown(name));
                return Err(CheckpointError::malformed(&path, reason));
            };
            param.frozen = true;
        }
        Ok(spec)
    }

    /// Parts that the state lies in.
    pub fn parts(&self) -> usize {
        (self.files.len() / crate::parts::KINDS.len()).max(1)
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// What is wrong with the folder as far as names tell: that it is not of `step`, that the manifest does not list the files
    /// of a checkpoint, or what is there beside them.
    pub(crate) fn misplaced(
        &self,
        folder: &Path,
        step: Option<u64>,
    ) -> Result<Vec<CheckpointError>, CheckpointError> {
        let mut problems = Vec::new();
        let mut bad = |what: String| {
            let reason = format!("{what}. {}", advice(folder));
            problems.push(CheckpointError::malformed(folder.join(Self::NAME), reason));
        };
        if let Some(step) = step.filter(|step| *step != self.state.step) {
            bad(format!("is of step {}, and stands in the folder of step {step}", self.state.step));
        }
        let names = crate::parts::file_names(self.parts());
        if !self.files.iter().map(|f| &f.name).eq(&names) {
            bad(format!("does not list the files of a checkpoint, which are {}", names.join(" and ")));
        }
        for entry in fs::read_dir(folder).at("read the folder", folder)? {
            let name = entry.at("read the folder", folder)?.file_name();
            if name != Self::NAME && !names.iter().any(|n| name == n.as_str()) {
                let name = shown(&name.to_string_lossy());
                let reason = format!("holds {name}, which is not part of the checkpoint; move it elsewhere");
                problems.push(CheckpointError::malformed(folder, reason));
            }
        }
        Ok(problems)
    }
}

/// What to do about a checkpoint that is not whole.
pub(crate) fn advice(folder: &Path) -> String {
    format!("To go on from the checkpoint before, delete the folder {}", folder.display())
}
