//! The checkpoints of one run: save, find, load, and keep only the last few.

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::export::entries;
use crate::float::FloatType;
use crate::manifest::{FORMAT, FileRecord, Manifest, RunState};
use crate::names;
use crate::tensor_file::{TensorFile, Values};
use crate::tensor_write::{self, Encoding, Entry};
use memwall_engine::{Part, Rank};
use memwall_model::ParamId;
use memwall_tensor::device::Device;
use std::path::{Path, PathBuf};
use std::{fs, io};

const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// Parts of a rank's state, each with the prefix of its names.
type Parts = [(Part, &'static str)];
const WEIGHT: [(Part, &str); 1] = [(Part::Weight, "")];
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
            let step = name.to_str().and_then(|n| n.strip_prefix("step-")?.parse::<u64>().ok());
            steps.extend(step.filter(|s| self.folder(*s).file_name() == Some(&name)));
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
        rank.begin_checkpoint();
        let folder = self.folder(state.step);
        if self.complete(state.step) && Manifest::read(&folder).is_ok_and(|m| m.state == *state) {
            return Ok(folder);
        }
        self.delete(state.step)?;
        self.disk.make_folder(&folder)?;
        self.disk.sync_folder(&self.root)?;
        let files = vec![
            write_parts(&self.disk, &folder.join(WEIGHTS), rank, &WEIGHT)?,
            write_parts(&self.disk, &folder.join(OPTIMIZER), rank, &MOMENTS)?,
        ];
        let memwall = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = Manifest { format: FORMAT, memwall, state: state.clone(), files };
        let text = manifest
            .to_text()
            .map_err(|e| CheckpointError::malformed(&folder, format!("has no manifest: {e}")))?;
        self.disk.replace(&folder.join(Manifest::NAME), text.as_bytes())?;
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

    /// Where the run was at a checkpoint, once every file has the recorded size and hash and there are no others.
    ///
    /// # Errors
    /// A file is missing, damaged or does not belong there; it is named.
    pub fn verify(&self, step: u64) -> Result<RunState, CheckpointError> {
        let folder = self.folder(step);
        let manifest = Manifest::read(&folder)?;
        manifest.verify(&folder, step, &[WEIGHTS, OPTIMIZER])?;
        Ok(manifest.state)
    }

    /// Loads a checkpoint into a rank: after this it is the rank that was saved, to the bit.
    ///
    /// # Errors
    /// A file is missing, damaged or of another model; it is named. The rank may have been written to in part.
    pub fn load<D: Device>(&self, step: u64, rank: &mut Rank<D>) -> Result<RunState, CheckpointError> {
        let state = self.verify(step)?;
        let folder = self.folder(step);
        load_parts(&folder.join(WEIGHTS), rank, &WEIGHT)?;
        load_parts(&folder.join(OPTIMIZER), rank, &MOMENTS)?;
        rank.set_steps_done(state.step);
        Ok(state)
    }
}

/// The tensors of a file of a checkpoint, in order.
fn tensors<D: Device>(rank: &Rank<D>, parts: &Parts) -> Vec<(Part, ParamId, Entry)> {
    let named = |(part, prefix): &(Part, &str)| {
        let params = entries(rank).into_iter().enumerate();
        let (part, prefix) = (*part, *prefix);
        params
            .map(|(i, e)| (part, ParamId(i), Entry { name: format!("{prefix}{}", e.name), shape: e.shape }))
            .collect::<Vec<_>>()
    };
    parts.iter().flat_map(named).collect()
}

fn write_parts<D: Device>(
    disk: &Disk,
    path: &Path,
    rank: &Rank<D>,
    parts: &Parts,
) -> Result<FileRecord, CheckpointError> {
    let tensors = tensors(rank, parts);
    let tensors = tensors.iter().map(|(part, param, e)| (e.clone(), rank.part(*part, *param)));
    let encoding = Encoding { dtype: FloatType::F32, values: Values::Any };
    tensor_write::write(disk, path, encoding, rank.device(), tensors)
}

fn load_parts<D: Device>(path: &Path, rank: &mut Rank<D>, parts: &Parts) -> Result<(), CheckpointError> {
    let file = TensorFile::open(path)?;
    let tensors = tensors(rank, parts);
    let wanted: Vec<Entry> = tensors.iter().map(|(_, _, e)| e.clone()).collect();
    let held = file.names().filter_map(|n| Some((n, file.info(n)?))).collect();
    names::require(&wanted, &held).map_err(|problems| CheckpointError::wrong_model(path, &problems))?;
    for (part, param, entry) in &tensors {
        let (device, dst) = rank.part_mut(*part, *param);
        file.read(&entry.name, device, dst)?;
    }
    Ok(())
}
