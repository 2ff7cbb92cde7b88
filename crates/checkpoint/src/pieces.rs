//! Tensors of which several files hold the parts.

use crate::error::{CheckpointError, shown};
use crate::manifest::FileRecord;
use crate::tensor_file::{TensorFile, Values};
use crate::tensor_write::Entry;
use memwall_tensor::SliceMut;
use memwall_tensor::device::Memory;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The files that hold the parts of some tensors.
#[derive(Debug)]
pub(crate) struct Pieces {
    files: Vec<TensorFile>,
    /// Of each tensor, its parts in order: file and elements. Together they are the whole tensor.
    parts: HashMap<String, Vec<(usize, Range<usize>)>>,
}

impl Pieces {
    /// Opens the files of `records`, which hold the parts of tensors of these names and sizes, and of no others.
    ///
    /// # Errors
    /// A file cannot be read, or their parts are not just these tensors.
    pub(crate) fn open(
        folder: &Path,
        records: &[&FileRecord],
        wanted: &[Entry],
    ) -> Result<Self, CheckpointError> {
        let bad = |reason: String| CheckpointError::WrongModel { path: folder.into(), reason };
        let (mut files, mut parts) = (Vec::new(), HashMap::<String, Vec<(usize, Range<usize>)>>::new());
        for record in records {
            let file = TensorFile::open(&folder.join(&record.name))?;
            for name in file.names() {
                let start = record.slices.get(name).copied().unwrap_or(0) as usize;
                let len = file.info(name).map_or(0, |info| info.len());
                let end = start.saturating_add(len);
                parts.entry(name.to_owned()).or_default().push((files.len(), start..end));
            }
            files.push(file);
        }
        for entry in wanted {
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
                return Err(bad(format!("{} has {end} elements, not {}", entry.name, entry.len())));
            }
        }
        if let Some(name) = parts.keys().find(|name| !wanted.iter().any(|e| e.name == **name)) {
            return Err(bad(format!("{} is no tensor of this model", shown(name))));
        }
        Ok(Self { files, parts })
    }

    /// Reads a tensor's elements from number `first` on into their place on a device.
    pub(crate) fn read<D: Memory>(
        &self,
        name: &str,
        first: usize,
        device: &D,
        mut dst: SliceMut<'_, D::Buf>,
    ) -> Result<(), CheckpointError> {
        let wanted = first..first + dst.len();
        for (file, range) in self.parts.get(name).into_iter().flatten() {
            let (start, end) = (wanted.start.max(range.start), wanted.end.min(range.end));
            if start < end {
                let place = dst.reborrow().part(start - first, end - start);
                let within = (start - range.start, range.len());
                self.files[*file].read_part(name, device, within, place, Values::Any)?;
            }
        }
        Ok(())
    }

    /// The same into a piece of f32 on the host.
    pub(crate) fn read_host(
        &self,
        name: &str,
        first: usize,
        piece: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let wanted = first..first + piece.len();
        for (file, range) in self.parts.get(name).into_iter().flatten() {
            let (start, end) = (wanted.start.max(range.start), wanted.end.min(range.end));
            if start < end {
                let place = &mut piece[start - first..end - first];
                self.files[*file].read_host(name, start - range.start, place)?;
            }
        }
        Ok(())
    }
}
