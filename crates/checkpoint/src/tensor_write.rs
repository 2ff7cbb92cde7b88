//! Writing tensors to a safetensors file, a piece at a time, from wherever their elements are.

use crate::disk::{Disk, DiskFile};
use crate::error::CheckpointError;
use crate::float::FloatType;
use crate::manifest::FileRecord;
use crate::tensor_file::{CHUNK, Values};
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::path::Path;

/// Name and dims of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Name.
    pub(crate) name: String,
    /// Dims, outermost first.
    pub(crate) shape: Vec<usize>,
}

impl Entry {
    /// Bytes that the tensor takes in a file.
    pub(crate) fn bytes(&self, dtype: FloatType) -> u64 {
        (self.len() * dtype.bytes()) as u64
    }

    /// Its elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// How tensors are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encoding {
    /// Type in the file; elements come as f32.
    pub(crate) dtype: FloatType,
    /// What may stand in the file.
    pub(crate) values: Values,
}

/// Fills a piece of tensor number `.0` from its element number `.1` on.
pub(crate) type Read<'a> = &'a mut dyn FnMut(usize, usize, &mut [f32]) -> Result<(), CheckpointError>;

/// Writes tensors in order; `read` is asked for their elements a piece at a time.
///
/// # Errors
/// The disk's, those of `read`, or a value that may not stand in the file.
pub(crate) fn write(
    disk: &Disk,
    path: &Path,
    encoding: Encoding,
    tensors: &[Entry],
    read: Read<'_>,
) -> Result<FileRecord, CheckpointError> {
    let mut file = disk.make_file(path)?;
    write_header(&mut file, path, encoding.dtype, tensors)?;
    let mut values = vec![0f32; CHUNK];
    let mut stored = vec![0u8; CHUNK * encoding.dtype.bytes()];
    for (number, entry) in tensors.iter().enumerate() {
        let len = entry.len();
        for start in (0..len).step_by(CHUNK) {
            let values = &mut values[..CHUNK.min(len - start)];
            read(number, start, values)?;
            let stored = &mut stored[..values.len() * encoding.dtype.bytes()];
            encoding.dtype.encode(values, stored);
            if encoding.values == Values::Finite {
                // A finite f32 may be beyond the type of the file.
                encoding.dtype.decode(stored, values);
            }
            if let Some(i) = encoding.values.fault(values) {
                return Err(CheckpointError::NotFinite {
                    path: path.into(),
                    tensor: entry.name.clone(),
                    index: start + i,
                    value: values[i],
                    dtype: encoding.dtype.name(),
                });
            }
            file.write(stored)?;
        }
    }
    let (size, blake3) = file.finish()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileRecord { name, size, blake3, slices: BTreeMap::new() })
}

fn write_header(
    file: &mut DiskFile,
    path: &Path,
    dtype: FloatType,
    entries: &[Entry],
) -> Result<(), CheckpointError> {
    let mut end = 0;
    let infos = entries
        .iter()
        .map(|e| {
            let start = end;
            end += e.bytes(dtype) as usize;
            let info =
                TensorInfo { dtype: dtype.dtype(), shape: e.shape.clone(), data_offsets: (start, end) };
            (e.name.clone(), info)
        })
        .collect();
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    let mut header = Metadata::new(metadata, infos)
        .map_err(|e| e.to_string())
        .and_then(|m| serde_json::to_vec(&m).map_err(|e| e.to_string()))
        .map_err(|e| CheckpointError::malformed(path, format!("would have a bad header: {e}")))?;
    // Tensors start on 8 bytes; the format pads the header with spaces.
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(&header)
}
