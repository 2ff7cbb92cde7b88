//! Buffers of the CPU device and the simple operations on them.

use super::family::kernel;
use super::{Cpu, M, Region, S};
use crate::device::{Buffer, Memory};
use crate::ledger::Charge;
use crate::{Category, DType, Description, Float, Ledger, OutOfMemory, bf16, math};
use std::sync::Arc;

/// A buffer in the CPU device's region.
#[derive(Debug)]
pub struct CpuBuf {
    // Keeps the mapping alive for as long as the buffer.
    _region: Arc<Region>,
    // Gives the block back to the arena when the buffer goes.
    charge: Charge,
    base: *mut u8,
    len: usize,
    dtype: DType,
    /// Whether other ranks can see it.
    shared: bool,
}

impl CpuBuf {
    /// Byte offset in the region that ranks share.
    pub(super) fn shared_offset(&self) -> Option<u64> {
        self.shared.then_some(self.charge.block.offset)
    }

    pub(super) fn dtype_bytes(&self) -> usize {
        self.dtype.bytes()
    }
}

// SAFETY: the bytes at `base` belong to this buffer alone: the arena hands out disjoint blocks.
unsafe impl Send for CpuBuf {}
// SAFETY: `&CpuBuf` only reads.
unsafe impl Sync for CpuBuf {}

impl Buffer for CpuBuf {
    fn len(&self) -> usize {
        self.len
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn read(&self, start: usize, bytes: &mut [u8]) {
        let len = bytes.len() / self.dtype.bytes();
        bytes.copy_from_slice(S::all(self).part(start, len).raw());
    }
}

/// A Rust type that a buffer's elements can be read as.
pub(super) trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

impl<'a> S<'a> {
    /// The elements.
    pub(super) fn get<T: Element>(self) -> &'a [T] {
        assert_eq!(self.buf.dtype, T::DTYPE, "a kernel got a buffer of another type");
        // SAFETY: `part` kept the range inside the buffer's block, which is aligned to 64 bytes, lives while
        // `self.buf` is borrowed, and is not written while it is borrowed shared. Any bits are a valid `T`.
        unsafe { std::slice::from_raw_parts(self.buf.base.cast::<T>().add(self.start), self.len) }
    }

    fn raw(self) -> &'a [u8] {
        let size = self.buf.dtype.bytes();
        // SAFETY: as in `get`.
        unsafe { std::slice::from_raw_parts(self.buf.base.add(self.start * size), self.len * size) }
    }
}

impl<'a> M<'a> {
    /// The elements.
    pub(super) fn get<T: Element>(self) -> &'a mut [T] {
        assert_eq!(self.buf.dtype, T::DTYPE, "a kernel got a buffer of another type");
        // SAFETY: as in `Slice::get`, and the exclusive borrow of the buffer makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.buf.base.cast::<T>().add(self.start), self.len) }
    }

    pub(super) fn raw(self) -> &'a mut [u8] {
        let size = self.buf.dtype.bytes();
        // SAFETY: as in `get`.
        unsafe { std::slice::from_raw_parts_mut(self.buf.base.add(self.start * size), self.len * size) }
    }
}

impl Cpu {
    fn cast_to<A: Float, B: Float>(&self, src: &[A], dst: &mut [B]) {
        assert_eq!(src.len(), dst.len(), "elements to cast");
        let (tasks, size) = self.parts(src.len(), 64);
        let dst = super::Shared::of(dst);
        self.parallel(tasks, |t| {
            let part = t * size..((t + 1) * size).min(src.len());
            // SAFETY: task `t` takes the `t`-th part.
            let dst = unsafe { dst.part(part.start, part.len()) };
            convert(self.family, &src[part], dst);
        });
    }
}

kernel! {
    fn convert<A: Float, B: Float>(src: &[A], dst: &mut [B]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = B::narrow(s.wide());
        }
    }
}

kernel! {
    fn normals(x: &mut [f32], key: u64, first: u64, std: f64) {
        for (i, x) in x.iter_mut().enumerate() {
            *x = (std * math::random_normal(key, first + i as u64)) as f32;
        }
    }
}

impl Memory for Cpu {
    type Buf = CpuBuf;

    fn alloc(&self, len: usize, dtype: DType, category: Category) -> Result<CpuBuf, OutOfMemory> {
        let charge = self.ledger.charge((len * dtype.bytes()) as u64, category)?;
        let shared = self.shared.as_ref().filter(|_| category.is_shared());
        let region = shared.unwrap_or(&self.region);
        let base = region.at(charge.block.offset as usize);
        Ok(CpuBuf { shared: shared.is_some(), _region: region.clone(), charge, base, len, dtype })
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn description(&self) -> Description {
        self.description
    }

    fn write(&self, dst: M<'_>, bytes: &[u8]) {
        dst.raw().copy_from_slice(bytes);
    }

    fn copy(&self, src: S<'_>, dst: M<'_>) {
        let (src, dst) = (src.raw(), dst.raw());
        assert_eq!(src.len(), dst.len(), "bytes to copy");
        let (tasks, size) = self.parts(src.len(), 1 << 16);
        let dst = super::Shared::of(dst);
        self.parallel(tasks, |t| {
            let part = t * size..((t + 1) * size).min(src.len());
            // SAFETY: task `t` takes the `t`-th part.
            unsafe { dst.part(part.start, part.len()) }.copy_from_slice(&src[part]);
        });
    }

    fn cast(&self, src: S<'_>, dst: M<'_>) {
        match (src.dtype(), dst.dtype()) {
            (DType::F32, DType::BF16) => self.cast_to(src.get::<f32>(), dst.get::<bf16>()),
            (DType::BF16, DType::F32) => self.cast_to(src.get::<bf16>(), dst.get::<f32>()),
            _ => self.copy(src, dst),
        }
    }

    fn zero(&self, dst: M<'_>) {
        let dst = dst.raw();
        let (tasks, size) = self.parts(dst.len(), 4096);
        let shared = super::Shared::of(dst);
        let len = dst.len();
        self.parallel(tasks, |t| {
            let start = t * size;
            // SAFETY: task `t` takes the `t`-th part.
            unsafe { shared.part(start, size.min(len - start)) }.fill(0);
        });
    }

    fn fill(&self, dst: M<'_>, value: f32) {
        dst.get::<f32>().fill(value);
    }

    fn fill_normal(&self, dst: M<'_>, key: u64, first: u64, std: f64) {
        let dst = dst.get::<f32>();
        let (tasks, size) = self.parts(dst.len(), 16);
        let (len, shared) = (dst.len(), super::Shared::of(dst));
        self.parallel(tasks, |t| {
            let start = t * size;
            // SAFETY: task `t` takes the `t`-th part.
            let part = unsafe { shared.part(start, size.min(len - start)) };
            normals(self.family, part, key, first + start as u64, std);
        });
    }
}
