//! What is kept of a move: `moves/0001` in the run folder.

use crate::failure::{Failure, Outcome};
use crate::run_folder::RunFolder;
use memwall_checkpoint::Disk;
use std::fs;
use std::path::{Path, PathBuf};

/// Says that the run was moved, and with which step's checkpoint.
const DONE: &str = "moved-at-step";
/// Says that the move was undone.
const UNDONE: &str = "undone";

/// The folder of a move.
pub(super) struct Record {
    root: PathBuf,
    disk: Disk,
}

impl Record {
    /// Folders of all moves of a run, in their order.
    fn all(folder: &RunFolder) -> Result<Vec<PathBuf>, Failure> {
        let root = folder.path("moves");
        let entries = match fs::read_dir(&root) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => {
                entries.map_err(|e| Failure::Failed(format!("cannot read {}: {e}", root.display())))?
            }
        };
        let mut all: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        all.retain(|path| path.file_name().is_some_and(|n| n.to_string_lossy().parse::<u32>().is_ok()));
        all.sort();
        Ok(all)
    }

    /// A new one.
    pub(super) fn new(folder: &RunFolder) -> Result<Self, Failure> {
        let last = Self::all(folder)?.pop();
        let number = |path: &PathBuf| path.file_name()?.to_string_lossy().parse::<u32>().ok();
        let next = last.as_ref().and_then(number).unwrap_or(0) + 1;
        let root = folder.path("moves").join(format!("{next:04}"));
        folder.disk().make_folder(&root).fail()?;
        Ok(Self { root, disk: folder.disk().clone() })
    }

    /// The last that was carried out, if it has not been undone.
    pub(super) fn last(folder: &RunFolder) -> Result<Option<Self>, Failure> {
        let carried_out = |path: &PathBuf| path.join(DONE).exists() && !path.join(UNDONE).exists();
        let last = Self::all(folder)?.into_iter().rev().find(carried_out);
        Ok(last.map(|root| Self { root, disk: folder.disk().clone() }))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where one of the two jobs is tried.
    pub(super) fn trial(&self, name: &str) -> PathBuf {
        self.root.join("trial").join(name)
    }

    /// Deletes what the trial's runs have written.
    pub(super) fn clear_trial(&self) {
        // It is of no more use; what cannot be deleted does no harm.
        let _ = fs::remove_dir_all(self.root.join("trial"));
    }

    pub(super) fn write(&self, name: &str, contents: &str) -> Result<(), Failure> {
        self.disk.replace(&self.path(name), contents.as_bytes()).fail()
    }

    /// The checkpoint of before.
    pub(super) fn checkpoint(&self) -> PathBuf {
        self.path("checkpoint")
    }

    /// Keeps what the run is before a move with this step's checkpoint.
    pub(super) fn keep_run(&self, folder: &RunFolder, step: u64) -> Result<(), Failure> {
        self.copy(&folder.path(RunFolder::JOB), &self.path(RunFolder::JOB))?;
        if folder.path(RunFolder::METRICS).exists() {
            self.copy(&folder.path(RunFolder::METRICS), &self.path(RunFolder::METRICS))?;
        }
        self.write("step", &format!("{step}\n"))
    }

    /// Puts back job and metrics; those of after the move are kept in `after`.
    pub(super) fn restore_run(&self, folder: &RunFolder, after: &Path) -> Result<(), Failure> {
        for name in [RunFolder::METRICS, RunFolder::JOB] {
            if folder.path(name).exists() && !after.join(name).exists() {
                self.copy(&folder.path(name), &after.join(name))?;
            }
            if self.path(name).exists() {
                self.copy(&self.path(name), &folder.path(name))?;
            }
        }
        Ok(())
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let bytes =
            fs::read(from).map_err(|e| Failure::Failed(format!("cannot read {}: {e}", from.display())))?;
        self.disk.replace(to, &bytes).fail()
    }

    /// The move has been carried out.
    pub(super) fn done(&self) -> Result<(), Failure> {
        self.disk.rename(&self.path("step"), &self.path(DONE)).fail()
    }

    /// And undone.
    pub(super) fn undone(&self) -> Result<(), Failure> {
        self.write(UNDONE, "")
    }

    /// The step whose checkpoint the run was moved with.
    pub(super) fn step(&self) -> Result<u64, Failure> {
        let path = self.path(DONE);
        let text = fs::read_to_string(&path).ok();
        text.and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| Failure::Failed(format!("{} does not say the step of the move", path.display())))
    }
}
