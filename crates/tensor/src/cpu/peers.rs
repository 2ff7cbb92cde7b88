//! What a transport through shared memory needs of the device: where a buffer lies, and sums and copies from elsewhere.

use super::family::kernel;
use super::memory::Element;
use super::{Cpu, M, S, Shared};
use crate::{DType, Float, bf16, fixed};
use std::ops::Range;

/// Elements that are summed at a time: four cache lines of f32.
const LANES: usize = 64;

/// Elements that are floats.
trait FloatElement: Float + Element {}
impl<T: Float + Element> FloatElement for T {}

impl Cpu {
    /// Byte offset of a part of a buffer in the region that ranks share; `None` where it lies in private memory.
    pub fn shared_offset(&self, slice: S<'_>) -> Option<u64> {
        slice.buf.shared_offset().map(|offset| offset + (slice.start * slice.buf.dtype_bytes()) as u64)
    }

    /// `to[i] = sum of source[i]`, or adds that sum to `to`, in the order of the sources. Sums of bf16 are f32, rounded once;
    /// those of i64 are fixed-point sums, in which overflow sticks ([`fixed::add`]).
    ///
    /// # Safety
    /// Each source points to as many elements of the same type as `to` has, which nobody else writes before this returns; it
    /// may be `to` itself.
    ///
    /// # Panics
    /// When elements are neither floating-point nor i64.
    pub unsafe fn sum_from(&self, to: M<'_>, sources: &[*const u8], accumulate: bool) {
        let (len, dtype) = (to.len(), to.dtype());
        let target = to.raw().as_mut_ptr();
        // SAFETY: the caller's promise; `to` is borrowed.
        unsafe { self.sum(len, dtype, sources, &[target], accumulate) };
    }

    /// Sums `len` elements of the sources as [`Cpu::sum_from`] does, and puts the sum in the place of each of them.
    ///
    /// # Safety
    /// Each buffer points to as many elements, which nobody else reads or writes before this returns.
    ///
    /// # Panics
    /// When elements are neither floating-point nor i64.
    pub unsafe fn sum_among(&self, len: usize, dtype: DType, buffers: &[*mut u8]) {
        let sources: Vec<*const u8> = buffers.iter().map(|b| b.cast_const()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.sum(len, dtype, &sources, buffers, false) };
    }

    /// # Safety
    /// As of [`Cpu::sum_from`], for each target.
    unsafe fn sum(
        &self,
        len: usize,
        dtype: DType,
        sources: &[*const u8],
        targets: &[*mut u8],
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match dtype {
                DType::F32 => self.sum_of(len, sources, targets, accumulate, sum_floats::<f32>),
                DType::BF16 => self.sum_of(len, sources, targets, accumulate, sum_floats::<bf16>),
                DType::I64 => self.sum_of(len, sources, targets, accumulate, sum_fixed),
                other => panic!("no sum of {other:?}"),
            }
        }
    }

    /// # Safety
    /// As of [`Cpu::sum_from`], for each target.
    unsafe fn sum_of<T: Element>(
        &self,
        len: usize,
        sources: &[*const u8],
        targets: &[*mut u8],
        accumulate: bool,
        kernel: fn(super::Family, Streams<'_, T>),
    ) {
        let sources: Vec<Shared<T>> = sources.iter().map(|s| Shared(s.cast::<T>().cast_mut())).collect();
        let targets: Vec<Shared<T>> = targets.iter().map(|t| Shared(t.cast::<T>())).collect();
        self.by_elements(len, |part| {
            kernel(self.family, Streams { sources: &sources, targets: &targets, part, accumulate });
        });
    }

    /// Copies as many elements as `to` has from elsewhere.
    ///
    /// # Safety
    /// The source points to as many bytes, which nobody writes before this returns, and which are not those of `to`.
    pub unsafe fn copy_from(&self, to: M<'_>, source: *const u8) {
        let to = to.raw();
        let len = to.len();
        let (to, source) = (Shared::of(to), Shared(source.cast_mut()));
        let (tasks, size) = self.parts(len, 1 << 16);
        self.parallel(tasks, |t| {
            let start = t * size;
            let n = size.min(len - start);
            // SAFETY: the caller's promise; task `t` takes the `t`-th part.
            unsafe { std::ptr::copy_nonoverlapping(source.at(start), to.at(start), n) };
        });
    }
}

/// Elements of some buffers that are summed into others, which may be among them.
struct Streams<'a, T> {
    sources: &'a [Shared<T>],
    targets: &'a [Shared<T>],
    part: Range<usize>,
    accumulate: bool,
}

impl<T: Element> Streams<'_, T> {
    /// Sums in lanes of `N` elements: a lane of each source in turn, so that all of them stream at the same time.
    #[inline(always)]
    fn sum<const N: usize, A: Copy + Default>(
        &self,
        first: usize,
        wide: impl Fn(T) -> A,
        add: impl Fn(A, A) -> A,
        narrow: impl Fn(A) -> T,
    ) {
        let mut sum = [A::default(); N];
        for (i, source) in self.sources.iter().enumerate() {
            // SAFETY: a source has these elements, and nobody else writes them now.
            let x: [T; N] = unsafe { source.at(first).cast::<[T; N]>().read() };
            for l in 0..N {
                sum[l] = if i == 0 { wide(x[l]) } else { add(sum[l], wide(x[l])) };
            }
        }
        for target in self.targets {
            let target = target.at(first).cast::<[T; N]>();
            let mut y = [T::zeroed(); N];
            // SAFETY: the task has these elements of each target for itself, and has read what a source shares with it.
            unsafe {
                if self.accumulate {
                    let x = target.read();
                    (0..N).for_each(|l| y[l] = narrow(add(wide(x[l]), sum[l])));
                } else {
                    (0..N).for_each(|l| y[l] = narrow(sum[l]));
                }
                target.write(y);
            }
        }
    }

    #[inline(always)]
    fn all<A: Copy + Default>(
        &self,
        wide: impl Fn(T) -> A,
        add: impl Fn(A, A) -> A,
        narrow: impl Fn(A) -> T,
    ) {
        let whole = self.part.start + self.part.len() / LANES * LANES;
        for first in (self.part.start..whole).step_by(LANES) {
            self.sum::<LANES, A>(first, &wide, &add, &narrow);
        }
        (whole..self.part.end).for_each(|first| self.sum::<1, A>(first, &wide, &add, &narrow));
    }
}

kernel! {
    fn sum_floats<T: FloatElement>(streams: Streams<'_, T>) {
        streams.all(T::wide, |a: f32, b| a + b, T::narrow);
    }
}

fn sum_fixed(_: super::Family, streams: Streams<'_, i64>) {
    streams.all(|x| x, fixed::add, |x| x);
}
