//! Writing tensors to a safetensors file, a piece at a time, from wherever their elements are.

use crate::disk::{Disk, DiskFile};
use crate::error::CheckpointError;
use crate::float::FloatType;
use crate::hash::Hash;
use crate::tensor_file::{CHUNK, Values};
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

/// A file whose tensors have their places.
#[derive(Debug)]
pub(crate) struct TensorWriter {
    file: DiskFile,
    encoding: Encoding,
    entries: Vec<Entry>,
    /// Where each tensor begins, and where the last ends.
    starts: Vec<u64>,
    /// Hash of the header.
    header: String,
}

/// Room for a piece of a tensor, as it comes and as it is written.
pub(crate) struct Piece {
    values: Vec<f32>,
    stored: Vec<u8>,
}

impl Piece {
    pub(crate) fn new() -> Self {
        Self { values: vec![0.0; CHUNK], stored: vec![0; CHUNK * 2] }
    }
}

impl TensorWriter {
    /// Makes the file, and writes its header.
    pub(crate) fn new(
        disk: &Disk,
        path: &Path,
        encoding: Encoding,
        entries: Vec<Entry>,
    ) -> Result<Self, CheckpointError> {
        let header = header(path, encoding.dtype, &entries)?;
        let file = disk.make_file(path)?;
        file.write_at(&header, 0)?;
        let mut starts = vec![header.len() as u64];
        for entry in &entries {
            starts.push(starts[starts.len() - 1] + entry.bytes(encoding.dtype));
        }
        let header = Hash::of(&header);
        Ok(Self { file, encoding, entries, starts, header })
    }

    /// Hash of the header.
    pub(crate) fn header(&self) -> &str {
        &self.header
    }

    /// Bytes of the whole file.
    pub(crate) fn size(&self) -> u64 {
        self.starts[self.entries.len()]
    }

    /// Writes tensor number `number`, whose elements `read` fills in from the one given on, and returns its hash. Several
    /// threads may write a tensor each.
    ///
    /// # Errors
    /// The disk's, those of `read`, or a value that may not stand in the file.
    pub(crate) fn write(
        &self,
        number: usize,
        piece: &mut Piece,
        read: ReadOne<'_>,
    ) -> Result<String, CheckpointError> {
        let Encoding { dtype, values: allowed } = self.encoding;
        let entry = &self.entries[number];
        let (len, mut at, mut hash) = (entry.len(), self.starts[number], Hash::default());
        for start in (0..len).step_by(CHUNK) {
            let values = &mut piece.values[..CHUNK.min(len - start)];
            read(start, values)?;
            if allowed == Values::Finite {
                // A finite f32 may be beyond the type of the file.
                dtype.round(values);
            }
            if let Some(i) = allowed.fault(values) {
                return Err(CheckpointError::NotFinite {
                    path: self.file.path().into(),
                    tensor: entry.name.clone(),
                    index: start + i,
                    value: values[i],
                    dtype: dtype.name(),
                });
            }
            let stored = dtype.encode(values, &mut piece.stored);
            hash.update(stored);
            self.file.write_at(stored, at)?;
            at += stored.len() as u64;
        }
        Ok(hash.finish())
    }

    /// Has the file reach the disk.
    pub(crate) fn finish(self) -> Result<(), CheckpointError> {
        self.file.finish()
    }
}

/// Fills a piece of a tensor from its element number `.0` on.
pub(crate) type ReadOne<'a> = &'a mut dyn FnMut(usize, &mut [f32]) -> Result<(), CheckpointError>;

/// Fills a piece of tensor number `.0` from its element number `.1` on.
pub(crate) type Read<'a> = &'a mut dyn FnMut(usize, usize, &mut [f32]) -> Result<(), CheckpointError>;

/// Writes a file of tensors, one after the other.
///
/// # Errors
/// As of [`TensorWriter::write`].
pub(crate) fn write(
    disk: &Disk,
    path: &Path,
    encoding: Encoding,
    tensors: &[Entry],
    read: Read<'_>,
) -> Result<(), CheckpointError> {
    let writer = TensorWriter::new(disk, path, encoding, tensors.to_vec())?;
    let mut piece = Piece::new();
    for number in 0..tensors.len() {
        writer.write(number, &mut piece, &mut |first, values| read(number, first, values))?;
    }
    writer.finish()
}

/// The length of the header, and the header.
fn header(path: &Path, dtype: FloatType, entries: &[Entry]) -> Result<Vec<u8>, CheckpointError> {
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
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    Ok(bytes)
}
