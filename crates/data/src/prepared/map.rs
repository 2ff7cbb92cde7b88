//! A file in memory, to read.

use std::{fs::File, path::Path};

use memmap2::{Mmap, MmapOptions};

use crate::DataError;

/// The bytes of a file, mapped.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps the first `bytes` bytes, at least 1, of a regular file that has exactly as many.
    pub(crate) fn open(path: &Path, bytes: u64) -> Result<Map, DataError> {
        let refused = |reason: String| DataError::Prepared { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(|error| refused(format!("cannot open it: {error}")))?;
        let metadata = file.metadata().map_err(|error| refused(format!("cannot look at it: {error}")))?;
        if !metadata.is_file() {
            return Err(refused("it is not a regular file".into()));
        }
        if metadata.len() != bytes {
            return Err(refused(format!("it has {} bytes, its manifest says {bytes}", metadata.len())));
        }
        let length =
            usize::try_from(bytes).map_err(|_| refused("it is too large for this machine".into()))?;
        // SAFETY: the mapping is private to reading and never written through, its length is the one that was just
        // checked, and it is only ever read as bytes, of which every value is valid. What no program can rule out is
        // that another one writes to the file. Nothing here does: these files are written under a temporary name,
        // and never touched once they have their own. If someone overwrites one, other bytes are read, and those are
        // checked against the range of token ids like any. If someone appends, the mapping keeps the recorded length.
        // If someone cuts one short, the system ends the process at the next read past the end (SIGBUS), which is no
        // undefined behaviour.
        let map = unsafe { MmapOptions::new().len(length).map(&file) };
        map.map(Map).map_err(|error| refused(format!("cannot map it: {error}")))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
