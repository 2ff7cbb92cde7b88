//! safetensors files, read by position and a piece at a time, so that no tensor is ever in memory whole.

use crate::error::{At, CheckpointError, shown};
use crate::files;
use crate::float::FloatType;
use crate::hash::Hash;
use crate::header::{Header, TensorInfo};
use memwall_tensor::SliceMut;
use memwall_tensor::device::Memory;
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Elements that are between device and file at a time: 256 KiB of f32.
pub(crate) const CHUNK: usize = 1 << 16;

/// Headers above this are refused, as by the format's own library.
const MAX_HEADER: u64 = files::MAX_TEXT;

/// Which values may stand in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Any: a run's state is stored and restored to the bit.
    Any,
    /// Numbers: what is trained from or handed on.
    Finite,
}

impl Values {
    /// The first value that may not stand there.
    pub(crate) fn fault(self, values: &[f32]) -> Option<usize> {
        match self {
            Values::Any => None,
            Values::Finite => values.iter().position(|v| !v.is_finite()),
        }
    }
}

/// A safetensors file that is open for reading by position.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    header: Header,
    /// Position of the first tensor.
    data: u64,
}

impl TensorFile {
    /// Opens a file and checks its header against its size.
    ///
    /// # Errors
    /// The file cannot be read, or is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bad = |reason: &str| {
            let advice = "copy it again from where it came from";
            CheckpointError::malformed(path, format!("is not a whole safetensors file: {reason}; {advice}"))
        };
        let (file, size) = files::open(path)?;
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
        let data = 8 + header;
        let header = Header::parse(&bytes, size - data).map_err(|e| bad(&e))?;
        Ok(Self { file, path: path.into(), header, data })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hash of all before the first tensor.
    pub(crate) fn header_hash(&self) -> Result<String, CheckpointError> {
        let mut bytes = vec![0; self.data as usize];
        self.file.read_exact_at(&mut bytes, 0).at("read", &self.path)?;
        Ok(Hash::of(&bytes))
    }

    /// Hash of a tensor's bytes, and how many there are.
    pub(crate) fn hash(&self, name: &str) -> Result<(String, u64), CheckpointError> {
        let (mut elements, mut hash, mut bytes) = (self.elements(name)?, Hash::default(), 0);
        while let Some(chunk) = elements.next()? {
            hash.update(chunk.stored);
            bytes += chunk.stored.len() as u64;
        }
        Ok((hash.finish(), bytes))
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Number of tensors of each type, as the format names types (such as "F32").
    pub fn types(&self) -> BTreeMap<String, usize> {
        let mut types = BTreeMap::new();
        for info in self.header.tensors.values() {
            *types.entry(info.dtype.to_string()).or_default() += 1;
        }
        types
    }

    /// A tensor's description.
    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensors.get(name)
    }

    /// Reads a tensor into its place on a device, to the bit.
    ///
    /// # Errors
    /// The tensor is not there, has another length or is not of floats, or the file cannot be read.
    pub fn read<D: Memory>(
        &self,
        name: &str,
        device: &D,
        dst: SliceMut<'_, D::Buf>,
    ) -> Result<(), CheckpointError> {
        let whole = dst.len();
        self.read_part(name, device, (0, whole), dst, Values::Any)
    }

    /// Reads the elements of a tensor of `whole` elements from `first` on, as many as there is room for, into their place on
    /// a device; values that may not stand there are refused.
    pub(crate) fn read_part<D: Memory>(
        &self,
        name: &str,
        device: &D,
        (first, whole): (usize, usize),
        mut dst: SliceMut<'_, D::Buf>,
        allowed: Values,
    ) -> Result<(), CheckpointError> {
        let elements = self.elements(name)?;
        if elements.left != whole {
            let reason = format!("{} has {} elements, not {whole}", shown(name), elements.left);
            return Err(CheckpointError::WrongModel { path: self.path.clone(), reason });
        }
        let mut elements = elements.from(first, dst.len());
        let mut at = 0;
        while let Some(chunk) = elements.next()? {
            if let Some(i) = allowed.fault(chunk.values) {
                return Err(CheckpointError::NotFinite {
                    path: self.path.clone(),
                    tensor: shown(name),
                    index: first + at + i,
                    value: chunk.values[i],
                    dtype: chunk.dtype.name(),
                });
            }
            device.write_floats(dst.reborrow().part(at, chunk.values.len()), chunk.values);
            at += chunk.values.len();
        }
        Ok(())
    }

    /// Reads a tensor's elements from number `first` on, as many as `piece` has, as f32.
    pub(crate) fn read_host(
        &self,
        name: &str,
        first: usize,
        piece: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let mut elements = self.elements(name)?.from(first, piece.len());
        let mut at = 0;
        while let Some(chunk) = elements.next()? {
            piece[at..at + chunk.values.len()].copy_from_slice(chunk.values);
            at += chunk.values.len();
        }
        Ok(())
    }

    /// Tells the system that these elements of a tensor will be read soon, so that it begins to.
    pub(crate) fn announce(&self, name: &str, elements: Range<usize>) {
        let of = |info: &TensorInfo| Some((self.data + info.start, FloatType::of(info.dtype)?.bytes()));
        let Some((start, size)) = self.info(name).and_then(of) else { return };
        let bytes = NonZeroU64::new((elements.len() * size) as u64);
        // It is advice: a system that does not take it reads more slowly.
        let _ = fadvise(&self.file, start + (elements.start * size) as u64, bytes, Advice::WillNeed);
    }

    /// Reads a tensor piece by piece.
    pub(crate) fn elements(&self, name: &str) -> Result<Elements<'_>, CheckpointError> {
        let wrong = |reason| CheckpointError::WrongModel { path: self.path.clone(), reason };
        let info = self.info(name).ok_or_else(|| wrong(format!("{} is missing", shown(name))))?;
        let Some(dtype) = FloatType::of(info.dtype) else {
            return Err(wrong(not_read(name, info)));
        };
        let n = CHUNK.min(info.len());
        Ok(Elements {
            file: self,
            dtype,
            at: self.data + info.start,
            left: info.len(),
            halves: if dtype == FloatType::F32 { Vec::new() } else { vec![0; n * 2] },
            values: vec![0.0; n],
        })
    }
}

/// What to say of a tensor that is not of floats.
pub(crate) fn not_read(name: &str, info: &TensorInfo) -> String {
    format!("{} has type {}; F32, BF16 and F16 are read: convert it first", shown(name), info.dtype)
}

/// The elements of a tensor, as f32, a piece at a time.
pub(crate) struct Elements<'a> {
    file: &'a TensorFile,
    dtype: FloatType,
    at: u64,
    left: usize,
    /// As they stand in the file, where that is not as f32.
    halves: Vec<u8>,
    values: Vec<f32>,
}

/// A piece of a tensor.
pub(crate) struct Chunk<'a> {
    pub(crate) dtype: FloatType,
    /// As it stands in the file.
    pub(crate) stored: &'a [u8],
    pub(crate) values: &'a [f32],
}

impl Elements<'_> {
    /// The same, but up to `len` elements from number `first` on.
    pub(crate) fn from(mut self, first: usize, len: usize) -> Self {
        self.at += (first.min(self.left) * self.dtype.bytes()) as u64;
        self.left = self.left.saturating_sub(first).min(len);
        self
    }

    /// The next piece, of up to [`CHUNK`] elements; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk<'_>>, CheckpointError> {
        let (dtype, n) = (self.dtype, self.left.min(CHUNK));
        if n == 0 {
            return Ok(None);
        }
        let stored = match dtype {
            // Files are little-endian, and so is every machine that devices run on.
            FloatType::F32 => bytemuck::cast_slice_mut(&mut self.values[..n]),
            _ => &mut self.halves[..n * dtype.bytes()],
        };
        self.file.file.read_exact_at(stored, self.at).at("read", &self.file.path)?;
        self.at += stored.len() as u64;
        self.left -= n;
        let stored = if dtype == FloatType::F32 {
            bytemuck::cast_slice(&self.values[..n])
        } else {
            let stored = &self.halves[..n * dtype.bytes()];
            dtype.decode(stored, &mut self.values[..n]);
            stored
        };
        Ok(Some(Chunk { dtype, stored, values: &self.values[..n] }))
    }

    /// Gives the room that the last piece is in away, for another one.
    pub(crate) fn exchange(&mut self, mut other: Vec<f32>) -> Vec<f32> {
        other.resize(self.values.len(), 0.0);
        std::mem::replace(&mut self.values, other)
    }
}
