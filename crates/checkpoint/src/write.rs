//! Writing the files of one part of a checkpoint, and waiting until those of all parts are there.

use crate::disk::Disk;
use crate::error::CheckpointError;
use crate::float::FloatType;
use crate::manifest::{FileRecord, TensorRecord};
use crate::parts::Share;
use crate::tensor_file::Values;
use crate::tensor_write::{Encoding, Piece, TensorWriter};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How state stands in the files: to the bit.
const EXACT: Encoding = Encoding { dtype: FloatType::F32, values: Values::Any };

/// Between two looks at what other ranks have written.
const LOOK: Duration = Duration::from_millis(2);

/// Nobody waits for the checkpoint any more.
pub(crate) fn cut_off() -> CheckpointError {
    CheckpointError::Ranks { reason: "the run ended before".into() }
}

/// Files of one part of a checkpoint, to be written.
pub(crate) struct Parts<'a> {
    pub(crate) disk: &'a Disk,
    /// Paths, and what is to stand in them.
    pub(crate) files: &'a [(PathBuf, Vec<Share>)],
    pub(crate) threads: usize,
}

/// Fills elements of tensor number `.0`, counted through all files, from its element number `.1` on.
pub(crate) type ReadShared<'a> = &'a (dyn Fn(usize, usize, &mut [f32]) -> Result<(), CheckpointError> + Sync);

impl Parts<'_> {
    /// Writes the files, and a record beside each.
    pub(crate) fn write(&self, read: ReadShared<'_>) -> Result<(), CheckpointError> {
        let mut writers = Vec::new();
        let mut jobs = Vec::new();
        for (path, shares) in self.files {
            jobs.extend((0..shares.len()).map(|number| (writers.len(), number)));
            let entries = shares.iter().map(|s| s.entry.clone()).collect();
            writers.push(TensorWriter::new(self.disk, path, EXACT, entries)?);
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let hashes = Mutex::new(vec![String::new(); jobs.len()]);
        let work = || {
            let mut piece = Piece::new();
            while !failed.load(Ordering::Relaxed) {
                let job = next.fetch_add(1, Ordering::Relaxed);
                let Some((file, number)) = jobs.get(job) else { break };
                let hash = writers[*file]
                    .write(*number, &mut piece, &mut |first, values| read(job, first, values))
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                hashes.lock().unwrap_or_else(PoisonError::into_inner)[job] = hash;
            }
            Ok(())
        };
        on_threads(self.threads, &work)?;
        let mut hashes = hashes.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
        for (writer, (path, shares)) in writers.into_iter().zip(self.files) {
            let tensors: BTreeMap<String, TensorRecord> = shares
                .iter()
                .zip(&mut hashes)
                .map(|(s, xxh3)| {
                    (s.entry.name.clone(), TensorRecord { first: s.elements.start as u64, xxh3 })
                })
                .collect();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let record =
                FileRecord { name, size: writer.size(), header: writer.header().to_owned(), tensors };
            writer.finish()?;
            let text = serde_json::to_vec(&record)
                .map_err(|e| CheckpointError::malformed(path, format!("cannot have a record: {e}")))?;
            self.disk.replace(&record_of(path), &text)?;
        }
        Ok(())
    }
}

/// Has this many threads, the calling one among them, do `work`; the first error is returned.
pub(crate) fn on_threads(
    threads: usize,
    work: &(impl Fn() -> Result<(), CheckpointError> + Sync),
) -> Result<(), CheckpointError> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let join = |t: thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(own, |outcome, other| outcome.and(other))
    })
}

/// Where a rank tells the first what it has written, until that has written the manifest.
pub(crate) fn record_of(path: &Path) -> PathBuf {
    path.with_extension("record")
}

/// Waits for the records of all files, and takes them away. Whoever is slow is waited for as long as the folder grows.
pub(crate) fn records(
    disk: &Disk,
    folder: &Path,
    names: &[String],
    patience: Duration,
    cancel: &AtomicBool,
) -> Result<Vec<FileRecord>, CheckpointError> {
    let mut found = Vec::with_capacity(names.len());
    let (mut grown, mut size) = (Instant::now(), 0);
    for name in names {
        let path = record_of(&folder.join(name));
        while !path.exists() {
            if cancel.load(Ordering::Relaxed) {
                return Err(cut_off());
            }
            if grown.elapsed() > patience {
                let seconds = patience.as_secs();
                let reason = format!("the rank that writes {name} has written nothing for {seconds} s");
                return Err(CheckpointError::Ranks { reason });
            }
            thread::sleep(LOOK);
            let now = size_of_files(folder);
            if now != size {
                (grown, size) = (Instant::now(), now);
            }
        }
        let text = crate::files::read(&path)?;
        found.push(
            serde_json::from_slice(&text)
                .map_err(|e| CheckpointError::malformed(&path, format!("is no record of a file: {e}")))?,
        );
    }
    names.iter().try_for_each(|name| disk.remove_file(&record_of(&folder.join(name))))?;
    Ok(found)
}

fn size_of_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
}
