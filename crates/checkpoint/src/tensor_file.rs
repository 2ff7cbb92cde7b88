//! safetensors files, written and read a piece at a time, so that no tensor is ever copied whole.

use crate::disk::{Disk, DiskFile};
use crate::error::{At, CheckpointError};
use crate::manifest::FileRecord;
use memwall_tensor::device::Memory;
use memwall_tensor::{Slice, SliceMut};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are between device and file at a time.
const CHUNK: usize = 1 << 16;
/// Headers above this are refused, as by the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// Name and dims of a tensor to write; f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Dims, outermost first.
    pub shape: Vec<usize>,
}

/// Writes f32 tensors that lie on a device, in order.
///
/// # Errors
/// The disk's.
pub(crate) fn write<'a, D: Memory + 'a>(
    disk: &Disk,
    path: &Path,
    device: &D,
    tensors: impl Iterator<Item = (Entry, Slice<'a, D::Buf>)> + Clone,
) -> Result<FileRecord, CheckpointError> {
    let mut file = disk.make_file(path)?;
    write_header(&mut file, path, tensors.clone().map(|(e, _)| e))?;
    let mut chunk = vec![0u8; CHUNK];
    for (_, slice) in tensors {
        for start in (0..slice.len()).step_by(CHUNK / 4) {
            let part = slice.part(start, (CHUNK / 4).min(slice.len() - start));
            let bytes = &mut chunk[..part.len() * 4];
            device.read(part, bytes);
            file.write(bytes)?;
        }
    }
    let (size, blake3) = file.finish()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileRecord { name, size, blake3 })
}

fn write_header(
    file: &mut DiskFile,
    path: &Path,
    entries: impl Iterator<Item = Entry>,
) -> Result<(), CheckpointError> {
    let mut end = 0;
    let infos = entries
        .map(|e| {
            let start = end;
            end += e.shape.iter().product::<usize>() * 4;
            (e.name, TensorInfo { dtype: Dtype::F32, shape: e.shape, data_offsets: (start, end) })
        })
        .collect();
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    let header = Metadata::new(metadata, infos)
        .map_err(|e| e.to_string())
        .and_then(|m| serde_json::to_vec(&m).map_err(|e| e.to_string()))
        .map_err(|e| CheckpointError::malformed(path, format!("would have a bad header: {e}")))?;
    // Tensors start on 8 bytes; the format pads the header with spaces.
    let padded = header.len().next_multiple_of(8);
    file.write(&(padded as u64).to_le_bytes())?;
    let mut header = header;
    header.resize(padded, b' ');
    file.write(&header)
}

/// A safetensors file that is open for reading by position.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    metadata: Metadata,
    data: u64,
}

impl TensorFile {
    /// Opens a file and checks its header against its size.
    ///
    /// # Errors
    /// The file cannot be read, or is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bad = |reason: &str| {
            CheckpointError::malformed(path, format!("is not a whole safetensors file: {reason}"))
        };
        let file = File::open(path).at("open", path)?;
        let size = file.metadata().at("read", path)?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Err(bad(&format!("it has only {size} bytes")));
        }
        file.read_exact_at(&mut length, 0).at("read", path)?;
        let header = u64::from_le_bytes(length);
        if header > MAX_HEADER || header > size - 8 {
            return Err(bad(&format!("its header would take {header} bytes, the file has {size}")));
        }
        let mut bytes = vec![0; header as usize];
        file.read_exact_at(&mut bytes, 8).at("read", path)?;
        // The library checks that offsets fit shapes and leave neither gaps nor overlaps.
        let metadata: Metadata = serde_json::from_slice(&bytes).map_err(|e| bad(&e.to_string()))?;
        let (data, want) = (8 + header, metadata.data_len() as u64);
        if size - data != want {
            return Err(bad(&format!(
                "its header promises {want} bytes of tensors, the file has {}",
                size - data
            )));
        }
        Ok(Self { file, path: path.into(), metadata, data })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.tensors().into_keys()
    }

    /// Name, type as safetensors names it (such as "F32"), and dims of every tensor, in the order of names.
    pub fn tensors(&self) -> Vec<(String, String, Vec<usize>)> {
        let tensors = self.metadata.tensors().into_iter();
        let mut all: Vec<_> =
            tensors.map(|(name, info)| (name, format!("{:?}", info.dtype), info.shape.clone())).collect();
        all.sort();
        all
    }

    /// Refuses the file unless it holds exactly these tensors, as f32.
    ///
    /// # Errors
    /// Names of tensors that are missing, left over, misshaped or of another type.
    pub fn require(
        &self,
        entries: &[Entry],
        ignorable: impl Fn(&str) -> bool,
    ) -> Result<(), CheckpointError> {
        let mut problems = Vec::new();
        for e in entries {
            match self.metadata.info(&e.name) {
                None => problems.push(format!("{} is missing", e.name)),
                Some(i) if i.shape != e.shape => {
                    problems.push(format!("{} has shape {:?}, not {:?}", e.name, i.shape, e.shape));
                }
                Some(i) if i.dtype != Dtype::F32 => problems.push(format!(
                    "{} has type {:?}; only F32 is read: convert the file first",
                    e.name, i.dtype
                )),
                Some(_) => {}
            }
        }
        let known: std::collections::HashSet<&str> = entries.iter().map(|e| e.name.as_str()).collect();
        let mut extra: Vec<String> =
            self.names().filter(|n| !known.contains(n.as_str()) && !ignorable(n)).collect();
        extra.sort();
        problems.extend(extra.into_iter().map(|n| format!("{n} is not a parameter of this model")));
        if problems.is_empty() {
            return Ok(());
        }
        let more = problems.len().saturating_sub(8);
        problems.truncate(8);
        if more > 0 {
            problems.push(format!("and {more} more"));
        }
        Err(CheckpointError::WrongModel { path: self.path.clone(), reason: problems.join("; ") })
    }

    /// Reads a tensor into its place on a device.
    ///
    /// # Errors
    /// The tensor is not there or has another length, or the file cannot be read.
    pub fn read<D: Memory>(
        &self,
        name: &str,
        device: &D,
        mut dst: SliceMut<'_, D::Buf>,
    ) -> Result<(), CheckpointError> {
        let info = self.metadata.info(name).filter(|i| i.shape.iter().product::<usize>() == dst.len());
        let Some(info) = info else {
            let reason = format!("{name} is missing or misshaped");
            return Err(CheckpointError::WrongModel { path: self.path.clone(), reason });
        };
        let mut at = self.data + info.data_offsets.0 as u64;
        let mut chunk = vec![0u8; CHUNK];
        for start in (0..dst.len()).step_by(CHUNK / 4) {
            let n = (CHUNK / 4).min(dst.len() - start);
            let bytes = &mut chunk[..n * 4];
            self.file.read_exact_at(bytes, at).at("read", &self.path)?;
            at += bytes.len() as u64;
            device.write(dst.reborrow().part(start, n), bytes);
        }
        Ok(())
    }
}
