//! The checkpoints of one run: save, find, load, and keep only the last few.

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::hf::{entries, write_part};
use crate::manifest::{FORMAT, Manifest, RunState};
use crate::tensor_file::{Entry, TensorFile};
use memwall_engine::{Part, Rank};
use memwall_model::ParamId;
use memwall_tensor::device::Device;
use std::path::{Path, PathBuf};
use std::{fs, io};

const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const MOMENTS: [(Part, &str); 2] = [(Part::FirstMoment, "exp_avg."), (Part::SecondMoment, "exp_avg_sq.")];

/// The folder `checkpoints/` of a run.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    keep: usize,
    disk: Disk,
}

impl Store {
    /// The checkpoints under `root`, of which the last `keep` are kept.
    pub fn new(root: impl Into<PathBuf>, keep: usize, disk: Disk) -> Self {
        Self { root: root.into(), keep: keep.max(1), disk }
    }

    fn folder(&self, step: u64) -> PathBuf {
        self.root.join(format!("step-{step:08}"))
    }

    /// Steps of all folders, ascending, complete or not.
    fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("read the folder", &self.root)?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.at("read the folder", &self.root)?.file_name();
            steps.extend(name.to_str().and_then(|n| n.strip_prefix("step-")?.parse::<u64>().ok()));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn complete(&self, step: u64) -> bool {
        self.folder(step).join(Manifest::NAME).is_file()
    }

    /// The step of the last complete checkpoint.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn latest(&self) -> Result<Option<u64>, CheckpointError> {
        Ok(self.steps()?.into_iter().rev().find(|&s| self.complete(s)))
    }

    /// Saves a rank. What is there of the same step, an earlier save that was cut off, is replaced; then
    /// checkpoints beyond the last few are deleted.
    ///
    /// # Errors
    /// The disk's. The checkpoints that were complete before still are.
    pub fn save<D: Device>(&self, rank: &Rank<D>, state: &RunState) -> Result<PathBuf, CheckpointError> {
        let folder = self.folder(state.step);
        if self.complete(state.step) && Manifest::read(&folder).is_ok_and(|m| m.state == *state) {
            return Ok(folder);
        }
        self.delete(state.step)?;
        self.disk.make_folder(&folder)?;
        self.disk.sync_folder(&self.root)?;
        let files = vec![
            write_part(&self.disk, &folder.join(WEIGHTS), rank, &[(Part::Weight, "")])?,
            write_part(&self.disk, &folder.join(OPTIMIZER), rank, &MOMENTS)?,
        ];
        let memwall = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = Manifest { format: FORMAT, memwall, state: state.clone(), files };
        let text = serde_json::to_vec_pretty(&manifest)
            .map_err(|e| CheckpointError::malformed(&folder, format!("has no manifest: {e}")))?;
        self.disk.replace(&folder.join(Manifest::NAME), &text)?;
        self.prune()?;
        Ok(folder)
    }

    /// Deletes complete checkpoints beyond the last few, and incomplete ones.
    fn prune(&self) -> Result<(), CheckpointError> {
        let (complete, partial): (Vec<u64>, Vec<u64>) =
            self.steps()?.into_iter().partition(|&s| self.complete(s));
        let old = complete.len().saturating_sub(self.keep);
        partial.into_iter().chain(complete[..old].iter().copied()).try_for_each(|s| self.delete(s))
    }

    /// Deletes a checkpoint: first its manifest, so that what is left in between is no checkpoint.
    fn delete(&self, step: u64) -> Result<(), CheckpointError> {
        let folder = self.folder(step);
        self.disk.remove_file(&folder.join(Manifest::NAME))?;
        self.disk.remove_folder(&folder)
    }

    /// Where the run was at a checkpoint, once every file has the recorded size and hash.
    ///
    /// # Errors
    /// A file is missing or damaged; it is named.
    pub fn verify(&self, step: u64) -> Result<RunState, CheckpointError> {
        let folder = self.folder(step);
        let manifest = Manifest::read(&folder)?;
        manifest.verify(&folder)?;
        Ok(manifest.state)
    }

    /// Loads a checkpoint into a rank: after this it is the rank that was saved, to the bit.
    ///
    /// # Errors
    /// A file is missing, damaged or of another model; it is named. The rank may have been written to in part.
    pub fn load<D: Device>(&self, step: u64, rank: &mut Rank<D>) -> Result<RunState, CheckpointError> {
        let state = self.verify(step)?;
        let folder = self.folder(step);
        load_parts(&folder.join(WEIGHTS), rank, &[(Part::Weight, "")])?;
        load_parts(&folder.join(OPTIMIZER), rank, &MOMENTS)?;
        rank.set_steps_done(state.step);
        Ok(state)
    }
}

fn load_parts<D: Device>(
    path: &Path,
    rank: &mut Rank<D>,
    parts: &[(Part, &str)],
) -> Result<(), CheckpointError> {
    let file = TensorFile::open(path)?;
    let params = entries(rank.spec());
    let name =
        |prefix: &str, e: &Entry| Entry { name: format!("{prefix}{}", e.name), shape: e.shape.clone() };
    let wanted: Vec<Entry> =
        parts.iter().flat_map(|(_, prefix)| params.iter().map(|e| name(prefix, e))).collect();
    file.require(&wanted, |_| false)?;
    for (part, prefix) in parts {
        for (i, e) in params.iter().enumerate() {
            let (device, dst) = rank.part_mut(*part, ParamId(i));
            file.read(&name(prefix, e).name, device, dst)?;
        }
    }
    Ok(())
}
