//! Whether a checkpoint is what was written: every byte of every file, and nothing beside them.

use crate::error::CheckpointError;
use crate::manifest::Manifest;
use crate::parts::{by_kind, tensors};
use crate::pieces::{Pieces, damaged, open_file};
use crate::tensor_file::TensorFile;
use crate::write::on_threads;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was found.
#[derive(Debug)]
pub struct Verified {
    /// The manifest, if that can be read.
    pub manifest: Option<Manifest>,
    /// All that is wrong.
    pub problems: Vec<CheckpointError>,
    /// Tensors whose bytes were hashed.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads everything in a checkpoint's folder and compares it with the manifest. If `step` is given, the checkpoint is to be of
/// that step.
pub fn verify(folder: &Path, step: Option<u64>, threads: usize) -> Verified {
    let mut found = Verified { manifest: None, problems: Vec::new(), tensors: 0, bytes: 0 };
    let manifest = match Manifest::read(folder) {
        Ok(manifest) => manifest,
        Err(e) => {
            found.problems.push(e);
            return found;
        }
    };
    match manifest.misplaced(folder, step) {
        Ok(problems) => found.problems = problems,
        Err(e) => found.problems.push(e),
    }
    let mut files = Vec::new();
    for record in &manifest.files {
        match open_file(folder, record) {
            Ok(file) => files.push((file, record)),
            Err(e) => found.problems.push(e),
        }
    }
    let whole = found.problems.is_empty();
    let jobs: Vec<(&TensorFile, &str, &str)> = files
        .iter()
        .flat_map(|(file, record)| record.tensors.iter().map(move |(n, t)| (file, &**n, &*t.xxh3)))
        .collect();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let bytes = Mutex::new(0);
    let outcome = on_threads(threads, &|| {
        while let Some((number, (file, name, expected))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, jobs.get(n)?)))
        {
            let problem = match file.hash(name) {
                Ok((hash, size)) => {
                    *bytes.lock().unwrap_or_else(PoisonError::into_inner) += size;
                    let what = format!("{name} does not have the recorded hash");
                    (hash != *expected).then(|| damaged(folder, file.path(), &what))
                }
                Err(e) => Some(e),
            };
            if let Some(problem) = problem {
                wrong.lock().unwrap_or_else(PoisonError::into_inner).push((number, problem));
            }
        }
        Ok(())
    });
    found.problems.extend(outcome.err());
    let mut wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    wrong.sort_by_key(|(number, _)| *number);
    found.problems.extend(wrong.into_iter().map(|(_, problem)| problem));
    (found.tensors, found.bytes) = (jobs.len(), bytes.into_inner().unwrap_or_else(PoisonError::into_inner));
    if whole {
        // Every file is the one that was recorded: whether together they hold the model.
        let fits = manifest.spec(folder).and_then(|spec| {
            by_kind(&manifest.files).try_for_each(|(kind, records)| {
                Pieces::open(folder, records, &tensors(&spec, kind)).map(drop)
            })
        });
        found.problems.extend(fits.err());
    }
    found.manifest = Some(manifest);
    found
}
