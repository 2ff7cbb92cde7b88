//! The checkpoints of one run: find, load, and keep only the last few. How they are saved is in [`crate::save`].

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::load;
use crate::manifest::{Manifest, RunState};
use crate::saved::SavedState;
use crate::verify::{self, Verified};
use memwall_engine::Rank;
use memwall_tensor::device::Device;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// The folder `checkpoints/` of a run.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    keep: usize,
    /// Steps whose multiples are kept for good.
    keep_every: Option<u64>,
    patience: Duration,
    disk: Disk,
}

impl Store {
    /// Name of the link to the last complete checkpoint.
    pub const LATEST: &'static str = "latest";

    /// The checkpoints under `root`, of which the last `keep` are kept.
    pub fn new(root: impl Into<PathBuf>, keep: usize, disk: Disk) -> Self {
        let patience = Duration::from_secs(600);
        Self { root: root.into(), keep: keep.max(1), keep_every: None, patience, disk }
    }

    /// The same, but checkpoints of steps that are a multiple of this are kept for good.
    #[must_use]
    pub fn keeping_every(self, steps: Option<u64>) -> Self {
        Self { keep_every: steps, ..self }
    }

    /// The same, but a rank that has written nothing for this long is not waited for any more.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a step's checkpoint, whether it is there or not.
    pub fn folder(&self, step: u64) -> PathBuf {
        self.root.join(format!("step-{step:08}"))
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Steps of all folders, ascending, complete or not.
    fn all_steps(&self) -> Result<Vec<u64>, CheckpointError> {
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

    pub(crate) fn complete(&self, step: u64) -> bool {
        self.folder(step).join(Manifest::NAME).is_file()
    }

    /// The steps of all complete checkpoints, ascending.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        Ok(self.all_steps()?.into_iter().filter(|s| self.complete(*s)).collect())
    }

    /// The step of the last complete checkpoint.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn latest(&self) -> Result<Option<u64>, CheckpointError> {
        Ok(self.steps()?.pop())
    }

    /// Makes a folder whose files are all there a checkpoint, points to it, and deletes what is not kept.
    pub(crate) fn complete_with(&self, folder: &Path, manifest: Manifest) -> Result<(), CheckpointError> {
        seal(&self.disk, folder, &manifest)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        self.disk.link(&self.root.join(Self::LATEST), &name)?;
        self.prune()
    }

    /// Deletes complete checkpoints beyond the last few, and incomplete ones.
    fn prune(&self) -> Result<(), CheckpointError> {
        let (complete, partial): (Vec<u64>, Vec<u64>) =
            self.all_steps()?.into_iter().partition(|&s| self.complete(s));
        let old = complete.len().saturating_sub(self.keep);
        let for_good = |step: &u64| self.keep_every.is_some_and(|n| step.is_multiple_of(n));
        let old = complete[..old].iter().filter(|step| !for_good(step)).copied();
        partial.into_iter().chain(old).try_for_each(|s| self.delete(s))
    }

    /// Deletes a checkpoint: first its manifest, so that what is left in between is no checkpoint.
    pub(crate) fn delete(&self, step: u64) -> Result<(), CheckpointError> {
        let folder = self.folder(step);
        self.disk.remove_file(&folder.join(Manifest::NAME))?;
        self.disk.remove_folder(&folder)
    }

    /// Where the run was at a checkpoint, once every file has the recorded size and hashes and there are no others.
    ///
    /// # Errors
    /// A file is missing, damaged or does not belong there; it is named.
    pub fn verify(&self, step: u64) -> Result<RunState, CheckpointError> {
        let Verified { manifest, mut problems, .. } = verify::verify(&self.folder(step), Some(step), 1);
        match (problems.is_empty(), manifest) {
            (true, Some(manifest)) => Ok(manifest.state),
            _ => Err(problems.swap_remove(0)),
        }
    }

    /// Loads a checkpoint into a rank, whatever ranks have saved it: of what the rank holds, it is then what was saved, to the
    /// bit. All ranks of the world call it together: each sees to the hashes of its share of the files.
    ///
    /// # Errors
    /// A file is missing, damaged or of another model; it is named. The rank may have been written to in part.
    pub fn load<D: Device>(&self, step: u64, rank: &mut Rank<D>) -> Result<RunState, CheckpointError> {
        let folder = self.folder(step);
        let manifest = Manifest::read(&folder)?;
        if let Some(problem) = manifest.misplaced(&folder, Some(step))?.into_iter().next() {
            return Err(problem);
        }
        load::load(&folder, &manifest, rank)?;
        rank.set_steps_done(manifest.state.step);
        Ok(manifest.state)
    }

    /// A checkpoint, to be read.
    ///
    /// # Errors
    /// As of [`SavedState::open`].
    pub fn open(&self, step: u64) -> Result<SavedState, CheckpointError> {
        SavedState::open(&self.folder(step))
    }
}

/// Makes a folder whose files are all there a checkpoint.
pub(crate) fn seal(disk: &Disk, folder: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    let text = manifest
        .to_text()
        .map_err(|e| CheckpointError::malformed(folder, format!("has no manifest: {e}")))?;
    disk.replace(&folder.join(Manifest::NAME), text.as_bytes())
}
