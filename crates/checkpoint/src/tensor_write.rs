//! Writing tensors that lie on a device to a safetensors file, a piece at a time.

use crate::disk::{Disk, DiskFile};
use crate::error::CheckpointError;
use crate::float::FloatType;
use crate::manifest::FileRecord;
use crate::tensor_file::{CHUNK, Values};
use memwall_tensor::Slice;
use memwall_tensor::device::Memory;
use safetensors::tensor::{Metadata, TensorInfo};
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
        (self.shape.iter().product::<usize>() * dtype.bytes()) as u64
    }
}

/// How tensors are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encoding {
    /// Type in the file; device buffers are f32.
    pub(crate) dtype: FloatType,
    /// What may stand in the file.
    pub(crate) values: Values,
}

/// Writes f32 tensors that lie on a device, in order.
///
/// # Errors
/// The disk's, or a value that may not stand in the file.
pub(crate) fn write<'a, D: Memory + 'a>(
    disk: &Disk,
    path: &Path,
    encoding: Encoding,
    device: &D,
    tensors: impl Iterator<Item = (Entry, Slice<'a, D::Buf>)> + Clone,
) -> Result<FileRecord, CheckpointError> {
    let mut file = disk.make_file(path)?;
    write_header(&mut file, path, encoding.dtype, tensors.clone().map(|(e, _)| e))?;
    let mut values = vec![0f32; CHUNK];
    let mut stored = vec![0u8; CHUNK * encoding.dtype.bytes()];
    for (entry, slice) in tensors {
        for start in (0..slice.len()).step_by(CHUNK) {
            let part = slice.part(start, CHUNK.min(slice.len() - start));
            let values = &mut values[..part.len()];
            device.read(part, bytemuck::cast_slice_mut(values));
            let stored = &mut stored[..values.len() * encoding.dtype.bytes()];
            encoding.dtype.encode(values, stored);
            if encoding.values == Values::Finite {
                // A finite f32 may be beyond the type of the file.
                encoding.dtype.decode(stored, values);
            }
            if let Some(i) = encoding.values.fault(values) {
                return Err(CheckpointError::NotFinite {
                    path: path.into(),
                    tensor: entry.name,
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
    Ok(FileRecord { name, size, blake3 })
}

fn write_header(
    file: &mut DiskFile,
    path: &Path,
    dtype: FloatType,
    entries: impl Iterator<Item = Entry>,
) -> Result<(), CheckpointError> {
    let mut end = 0;
    let infos = entries
        .map(|e| {
            let start = end;
            end += e.bytes(dtype) as usize;
            (e.name, TensorInfo { dtype: dtype.dtype(), shape: e.shape, data_offsets: (start, end) })
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
