//! Opening what is to be read: regular files only, and no more of them than is sensible.

use crate::error::{At, CheckpointError};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Texts (indexes, configs, manifests) above this are refused; as for a tensor file's header.
pub(crate) const MAX_TEXT: u64 = 100_000_000;

/// Opens a regular file; returns its size too.
pub(crate) fn open(path: &Path) -> Result<(File, u64), CheckpointError> {
    // A pipe or a device under this name would block, or never end.
    if !fs::metadata(path).at("open", path)?.is_file() {
        return Err(CheckpointError::malformed(path, "is not a regular file; put a file there"));
    }
    let file = File::open(path).at("open", path)?;
    let size = file.metadata().at("read", path)?.len();
    Ok((file, size))
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let (file, size) = open(path)?;
    if size > MAX_TEXT {
        let reason = format!("has {size} bytes, more than the {MAX_TEXT} that such a file may have");
        return Err(CheckpointError::malformed(path, reason));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // The file may grow in the meantime.
    file.take(MAX_TEXT).read_to_end(&mut bytes).at("read", path)?;
    Ok(bytes)
}
