//! Saving a checkpoint while training goes on.
//!
//! Beginning one lends the rank's state to a thread that writes it ([`memwall_engine::Snapshot`]). Ranks write their own files
//! and do not speak with each other while they do: each leaves a record beside a file that is complete, and the first rank, once
//! all records are there, writes the manifest and takes the records away.

use crate::error::CheckpointError;
use crate::manifest::{FORMAT, Manifest, RunState, SavedBy, SavedSchedule};
use crate::parts::{KINDS, Share, file_name, file_names, share};
use crate::store::Store;
use crate::write::{Parts, cut_off, record_of, records};
use memwall_engine::{FlatLayout, Rank, Snapshot};
use memwall_layout::Axis;
use memwall_tensor::device::{Device, Memory};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How much a save may take from what goes on beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One thread: training goes on.
    Background,
    /// As many threads as the device has: nothing else is to be done.
    Now,
}

/// A checkpoint that is being written. Dropping it cuts it off: then it is no checkpoint.
#[derive(Debug)]
#[must_use = "a checkpoint is complete when it was finished"]
pub struct Saving {
    folder: PathBuf,
    cancel: Arc<AtomicBool>,
    writer: Option<JoinHandle<Result<(), CheckpointError>>>,
    took: Arc<Mutex<Option<Duration>>>,
    bytes: u64,
    stood: Duration,
}

/// What a save came to, on this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The checkpoint.
    pub folder: PathBuf,
    /// Bytes of this rank's files.
    pub bytes: u64,
    /// From the beginning until this rank's part was done.
    pub took: Duration,
    /// How long the rank could not go on: at the beginning, and at the end until all ranks were done.
    pub stood: Duration,
}

impl Saving {
    /// Whether this rank's part is done, well or not: then finishing it waits for the others alone.
    pub fn is_over(&self) -> bool {
        self.writer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What went wrong on this rank so far: then there will be no checkpoint.
    ///
    /// # Errors
    /// The disk's.
    pub fn check(&mut self) -> Result<(), CheckpointError> {
        if self.is_over() { self.join() } else { Ok(()) }
    }

    /// Waits until the checkpoint is complete. All ranks of the world call it together.
    ///
    /// # Errors
    /// The disk's; other ranks do not come along. The checkpoints that were complete before still are.
    pub fn finish<D: Device>(mut self, rank: &mut Rank<D>) -> Result<Saved, CheckpointError> {
        let begin = Instant::now();
        self.join()?;
        together(rank)?;
        let took = *self.took.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Saved {
            folder: std::mem::take(&mut self.folder),
            bytes: self.bytes,
            took: took.unwrap_or_default(),
            stood: self.stood + begin.elapsed(),
        })
    }

    fn join(&mut self) -> Result<(), CheckpointError> {
        match self.writer.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            // What it says is of a checkpoint that nobody waits for any more.
            let _ = writer.join();
        }
    }
}

impl Store {
    /// Begins to save a rank, or with the others of its world what they have together: each its own part. What is there of the
    /// same step, an earlier save that was cut off, is replaced. All ranks of the world call it together, and finish it
    /// together before they begin another one.
    ///
    /// # Errors
    /// The disk's; other ranks do not come along. The checkpoints that were complete before still are.
    pub fn begin<D: Device + 'static>(
        &self,
        rank: &mut Rank<D>,
        state: &RunState,
        pace: Pace,
    ) -> Result<Saving, CheckpointError> {
        let begin = Instant::now();
        rank.begin_checkpoint();
        let folder = self.folder(state.step);
        let mut saving = Saving {
            folder: folder.clone(),
            cancel: Arc::default(),
            writer: None,
            took: Arc::default(),
            bytes: 0,
            stood: Duration::ZERO,
        };
        if self.complete(state.step) && Manifest::read(&folder).is_ok_and(|m| m.state == *state) {
            return Ok(saving);
        }
        let leads = rank.groups().rank == 0;
        if leads {
            self.delete(state.step)?;
            self.disk().make_folder(&folder)?;
            self.disk().sync_folder(self.root())?;
        }
        together(rank)?;
        // Of replicas, which hold the same, the first saves.
        if rank.groups().replicate.rank() == 0 {
            let manifest = leads.then(|| manifest(rank, state));
            let (writer, bytes) = self.writer(rank, folder, pace, manifest, saving.cancel.clone());
            let took = saving.took.clone();
            let run = move || {
                let outcome = writer.run();
                *took.lock().unwrap_or_else(PoisonError::into_inner) = Some(begin.elapsed());
                outcome
            };
            let thread = thread::Builder::new().name("checkpoint".into()).spawn(run);
            saving.writer = Some(thread.map_err(|source| CheckpointError::Io {
                action: "start a thread to write",
                path: saving.folder.clone(),
                source,
            })?);
            saving.bytes = bytes;
        }
        saving.stood = begin.elapsed();
        Ok(saving)
    }

    /// Saves, and waits until it is done.
    ///
    /// # Errors
    /// As of [`Store::begin`] and [`Saving::finish`].
    pub fn save<D: Device + 'static>(
        &self,
        rank: &mut Rank<D>,
        state: &RunState,
    ) -> Result<PathBuf, CheckpointError> {
        Ok(self.begin(rank, state, Pace::Now)?.finish(rank)?.folder)
    }

    /// What a rank has to write, and how many bytes of tensors that is.
    fn writer<D: Device>(
        &self,
        rank: &mut Rank<D>,
        folder: PathBuf,
        pace: Pace,
        manifest: Option<Manifest>,
        cancel: Arc<AtomicBool>,
    ) -> (Writer<D>, u64) {
        let (index, parts) = rank.share();
        let layout = FlatLayout::new(rank.spec(), parts);
        let files: Vec<(PathBuf, Vec<Share>)> = KINDS
            .iter()
            .map(|(base, kind)| {
                let shares = share(rank.spec(), &layout, kind, index, parts);
                (folder.join(file_name(base, index, parts)), shares)
            })
            .collect();
        let lent: Vec<_> = files
            .iter()
            .flat_map(|(_, shares)| shares)
            .map(|s| {
                let first = s.elements.start - rank.held(s.part, s.param).start;
                (s.part, s.param, first..first + s.elements.len())
            })
            .collect();
        let bytes = lent.iter().map(|(_, _, elements)| 4 * elements.len() as u64).sum();
        let threads = match pace {
            Pace::Background => 1,
            Pace::Now => rank.device().description().threads,
        };
        let snapshot = rank.lend(&lent);
        let names = file_names(parts);
        (Writer { store: self.clone(), folder, files, snapshot, threads, manifest, names, cancel }, bytes)
    }
}

/// The manifest of what a world of ranks saves, but for its files.
fn manifest<D: Device>(rank: &Rank<D>, state: &RunState) -> Manifest {
    let (spec, settings, mesh) = (rank.spec(), rank.settings(), rank.groups().mesh);
    Manifest {
        format: FORMAT,
        state: state.clone(),
        seed: settings.seed,
        schedule: SavedSchedule::of(&settings.schedule, state.step),
        layout: SavedBy {
            dp_replicate: mesh.degree(Axis::DpReplicate),
            dp_shard: mesh.degree(Axis::DpShard),
            zero: settings.zero as u8,
        },
        model: spec.config.to_json(),
        frozen: spec.params.iter().filter(|p| p.frozen).map(|p| p.name.clone()).collect(),
        files: Vec::new(),
    }
}

/// No rank goes on before all have come so far.
pub(crate) fn together<D: Device>(rank: &mut Rank<D>) -> Result<(), CheckpointError> {
    rank.agree(false).map(drop).map_err(|e| CheckpointError::Ranks { reason: e.to_string() })
}

/// A rank's part of a checkpoint, for the thread that writes it.
struct Writer<D: Memory> {
    store: Store,
    folder: PathBuf,
    files: Vec<(PathBuf, Vec<Share>)>,
    /// The tensors of all files, one after the other.
    snapshot: Snapshot<D>,
    threads: usize,
    /// Of the rank that completes the checkpoint.
    manifest: Option<Manifest>,
    /// The files of all ranks.
    names: Vec<String>,
    cancel: Arc<AtomicBool>,
}

impl<D: Memory> Writer<D> {
    fn run(self) -> Result<(), CheckpointError> {
        let Self { store, folder, files, snapshot, threads, manifest, names, cancel } = self;
        let leads = manifest.is_some();
        let parts = Parts { disk: store.disk(), files: &files, threads };
        let read = |piece: usize, first: usize, values: &mut [f32]| {
            if cancel.load(Ordering::Relaxed) {
                return Err(cut_off());
            }
            snapshot.read(piece, first, values);
            Ok(())
        };
        let written = parts.write(&read);
        drop(snapshot);
        let outcome = written.and_then(|()| match manifest {
            None => Ok(()),
            Some(manifest) => {
                let files = records(store.disk(), &folder, &names, store.patience(), &cancel)?;
                store.complete_with(&folder, Manifest { files, ..manifest })
            }
        });
        if outcome.is_err() && !folder.join(Manifest::NAME).exists() {
            // It will be no checkpoint, and a full disk is not to stay full. What failed first is what is told.
            let all = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let own = files.iter().flat_map(|(path, _)| [path.clone(), record_of(path)]);
            // Only the first rank knows that it is complete for nobody.
            let gone: Vec<PathBuf> = if leads { all.collect() } else { own.collect() };
            for path in gone {
                let _ = store.disk().remove_file(&path);
            }
        }
        outcome
    }
}
