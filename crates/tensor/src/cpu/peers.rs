//! What a transport through shared memory needs of the device: where a buffer lies, and sums and copies from elsewhere.

use super::family::kernel;
use super::memory::Element;
use super::{Cpu, M, S, Shared};
use crate::{DType, Float, bf16, fixed};

/// Elements that are summed at a time.
const BLOCK: usize = 1024;

impl Cpu {
    /// Byte offset of a part of a buffer in the region that ranks share; `None` where it lies in private memory.
    pub fn shared_offset(&self, slice: S<'_>) -> Option<u64> {
        slice.buf.shared_offset().map(|offset| offset + (slice.start * slice.buf.dtype_bytes()) as u64)
    }

    /// `to[i] = sum of source[i]`, or adds that sum to `to`, in the order of the sources. Sums of bf16 are f32, rounded once;
    /// those of i64 are fixed-point sums, in which overflow sticks ([`fixed::add`]).
    ///
    /// # Safety
    /// Each source points to as many elements of the same type as `to` has, which nobody writes before this returns; it may
    /// be `to` itself.
    ///
    /// # Panics
    /// When elements are neither floating-point nor i64.
    pub unsafe fn sum_from(&self, to: M<'_>, sources: &[*const u8], accumulate: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            match to.dtype() {
                DType::F32 => self.sum_of::<f32, f32>(to, sources, accumulate, sum_floats),
                DType::BF16 => self.sum_of::<bf16, f32>(to, sources, accumulate, sum_floats),
                DType::I64 => self.sum_of::<i64, i64>(to, sources, accumulate, sum_fixed),
                other => panic!("no sum of {other:?}"),
            }
        }
    }

    /// # Safety
    /// As of [`Cpu::sum_from`].
    unsafe fn sum_of<T: Element, A: Copy + Default>(
        &self,
        to: M<'_>,
        sources: &[*const u8],
        accumulate: bool,
        kernel: Kernel<T, A>,
    ) {
        let len = to.len();
        let to = Shared::of(to.get::<T>());
        let sources: Vec<Shared<T>> = sources.iter().map(|s| Shared(s.cast::<T>().cast_mut())).collect();
        self.by_elements(len, |part| {
            let mut sum = [A::default(); BLOCK];
            let mut block = [T::zeroed(); BLOCK];
            for start in part.clone().step_by(BLOCK) {
                let n = BLOCK.min(part.end - start);
                for (i, source) in sources.iter().enumerate() {
                    // SAFETY: a source has these elements, and nobody writes them now.
                    unsafe { std::ptr::copy_nonoverlapping(source.at(start), block.as_mut_ptr(), n) };
                    kernel(self.family, &mut sum[..n], &mut block[..n], Step::Add { first: i == 0 });
                }
                // SAFETY: this task takes its own part, and has read what a source shares with it.
                let to = unsafe { to.part(start, n) };
                kernel(self.family, &mut sum[..n], to, Step::Store { accumulate });
            }
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

/// What a kernel does with sums and elements.
#[derive(Clone, Copy)]
enum Step {
    /// Adds the elements to the sums, or begins the sums with them.
    Add { first: bool },
    /// Makes the elements the sums, or adds the sums to them.
    Store { accumulate: bool },
}

type Kernel<T, A> = fn(super::Family, &mut [A], &mut [T], Step);

kernel! {
    fn sum_floats<T: Float>(sums: &mut [f32], elements: &mut [T], step: Step) {
        for (s, x) in sums.iter_mut().zip(elements) {
            match step {
                Step::Add { first: true } => *s = x.wide(),
                Step::Add { first: false } => *s += x.wide(),
                Step::Store { accumulate: true } => *x = T::narrow(x.wide() + *s),
                Step::Store { accumulate: false } => *x = T::narrow(*s),
            }
        }
    }
}

fn sum_fixed(_: super::Family, sums: &mut [i64], elements: &mut [i64], step: Step) {
    for (s, x) in sums.iter_mut().zip(elements) {
        match step {
            Step::Add { first: true } => *s = *x,
            Step::Add { first: false } => *s = fixed::add(*s, *x),
            Step::Store { accumulate: true } => *x = fixed::add(*x, *s),
            Step::Store { accumulate: false } => *x = *s,
        }
    }
}
