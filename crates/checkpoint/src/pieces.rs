//! Tensors of which several files hold the parts.

use crate::error::{CheckpointError, shown};
use crate::manifest::{FileRecord, TensorRecord, advice};
use crate::names;
use crate::parts::Whole;
use crate::tensor_file::TensorFile;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The files that hold the parts of some tensors.
#[derive(Debug)]
pub(crate) struct Pieces {
    folder: PathBuf,
    files: Vec<(TensorFile, FileRecord)>,
    /// Of each tensor, its parts in order: file and elements. Together they are the whole tensor.
    parts: HashMap<String, Vec<(usize, Range<usize>)>>,
}

impl Pieces {
    /// Opens the files of `records`, which are as large as recorded, begin with the recorded header, and hold the parts of
    /// these tensors, and of no others.
    ///
    /// # Errors
    /// A file cannot be read or is damaged, or their parts are not just these tensors.
    pub(crate) fn open(
        folder: &Path,
        records: &[FileRecord],
        wanted: &[Whole],
    ) -> Result<Self, CheckpointError> {
        let bad = |reason: String| CheckpointError::WrongModel { path: folder.into(), reason };
        let (mut files, mut parts) = (Vec::new(), HashMap::<String, Vec<(usize, Range<usize>)>>::new());
        for record in records {
            let file = open_file(folder, record)?;
            for (name, tensor) in &record.tensors {
                let len = file.info(name).map_or(0, |info| info.len());
                let start = tensor.first as usize;
                let end = start.saturating_add(len);
                parts.entry(name.to_owned()).or_default().push((files.len(), start..end));
            }
            files.push((file, record.clone()));
        }
        if let [(whole, _)] = &files[..] {
            let held = whole.names().filter_map(|n| Some((n, whole.info(n)?))).collect();
            let entries: Vec<_> = wanted.iter().map(|w| w.entry.clone()).collect();
            names::require(&entries, &held)
                .map_err(|problems| CheckpointError::wrong_model(whole.path(), &problems))?;
        }
        for Whole { entry, .. } in wanted {
            let held = parts.get_mut(&entry.name).ok_or_else(|| bad(format!("{} is missing", entry.name)))?;
            held.sort_by_key(|(_, range)| (range.start, range.end));
            let mut end = 0;
            for (_, range) in &*held {
                if range.start != end {
                    let (name, at) = (&entry.name, range.start);
                    return Err(bad(format!(
                        "of {name} there is a part at {at}, where the one before ends at {end}"
                    )));
                }
                end = range.end;
            }
            if end != entry.len() {
                return Err(bad(format!("of {} there are {end} elements, not {}", entry.name, entry.len())));
            }
        }
        if let Some(name) = parts.keys().find(|name| !wanted.iter().any(|w| w.entry.name == **name)) {
            return Err(bad(format!("{} is no tensor of this model", shown(name))));
        }
        Ok(Self { folder: folder.into(), files, parts })
    }

    /// A file.
    pub(crate) fn file(&self, number: usize) -> &TensorFile {
        &self.files[number].0
    }

    /// What the manifest says of a tensor of a file.
    pub(crate) fn record(&self, file: usize, name: &str) -> Option<&TensorRecord> {
        self.files[file].1.tensors.get(name)
    }

    /// The parts of a tensor, in order: file and elements.
    pub(crate) fn parts_of(&self, name: &str) -> &[(usize, Range<usize>)] {
        self.parts.get(name).map_or(&[], Vec::as_slice)
    }

    /// What to say of a tensor whose hash is another.
    pub(crate) fn damaged(&self, file: usize, name: &str) -> CheckpointError {
        damaged(
            &self.folder,
            self.file(file).path(),
            &format!("{} does not have the recorded hash", shown(name)),
        )
    }

    /// Reads a tensor's elements from number `first` on, as f32.
    pub(crate) fn read(&self, name: &str, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        let wanted = first..first + piece.len();
        for (file, range) in self.parts_of(name) {
            let (start, end) = (wanted.start.max(range.start), wanted.end.min(range.end));
            if start < end {
                let place = &mut piece[start - first..end - first];
                self.file(*file).read_host(name, start - range.start, place)?;
            }
        }
        Ok(())
    }
}

/// Opens a file of a checkpoint, if it is the one that was recorded as far as size, header and names of tensors tell.
pub(crate) fn open_file(folder: &Path, record: &FileRecord) -> Result<TensorFile, CheckpointError> {
    let path = folder.join(&record.name);
    let (_, size) = crate::files::open(&path)?;
    if size != record.size {
        return Err(damaged(folder, &path, &format!("it has {size} bytes instead of {}", record.size)));
    }
    let file = TensorFile::open(&path)
        .map_err(|e| damaged(folder, &path, &format!("its header cannot be read ({e})")))?;
    let same =
        file.names().count() == record.tensors.len() && file.names().all(|n| record.tensors.contains_key(n));
    if !same || file.header_hash()? != record.header {
        return Err(damaged(folder, &path, "its header does not have the recorded hash"));
    }
    Ok(file)
}

/// What to say of a file that is not what was written.
pub(crate) fn damaged(folder: &Path, path: &Path, what: &str) -> CheckpointError {
    CheckpointError::malformed(path, format!("is damaged: {what}. {}", advice(folder)))
}
