//! The CPU device: one region of anonymous memory under the ledger's arena, one pool of threads.

mod activations;
mod attention;
mod bounds;
mod family;
mod finish;
mod gemm;
mod gemv;
mod loss;
mod memory;
mod norms;
mod optimizer;
mod pack;
mod peers;
mod pointwise;
mod pool;
mod region;
mod simd;

pub use bounds::Traffic;
pub use family::Family;
pub use memory::CpuBuf;
pub use pool::allowed_cores;
pub use region::Region;

use crate::ledger::Charge;
use crate::{Category, Description, Ledger, OutOfMemory, Slice, SliceMut};
use pool::Pool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Floats of working space a thread: a strip of an operand of [`gemm`], or tiles of [`attention`].
pub(crate) const SCRATCH_FLOATS: usize = {
    let (a, b) = (gemm::SCRATCH_FLOATS, attention::SCRATCH_FLOATS);
    if a > b { a } else { b }
};

/// Floats of working space that threads share: packed blocks of [`gemm`].
pub(crate) const SHARED_FLOATS: usize = gemm::SHARED_FLOATS;

/// A CPU device: computes with the threads and instructions of this machine. Results do not depend on
/// either.
#[derive(Debug)]
pub struct Cpu {
    ledger: Ledger,
    region: Arc<Region>,
    /// Where blocks lie that other ranks read, at the same offsets.
    shared: Option<Arc<Region>>,
    pool: Pool,
    description: Description,
    family: Family,
    scratch: Charge,
    /// Held by the operation that is under way: operations share the threads' scratch.
    busy: Mutex<()>,
}

type S<'a> = Slice<'a, CpuBuf>;
type M<'a> = SliceMut<'a, CpuBuf>;

impl Cpu {
    /// A device with `threads` threads whose limit is `budget` bytes. The address space is reserved at once;
    /// the operating system gives pages as they are first touched.
    ///
    /// # Errors
    /// The budget does not hold the device's own working space, or the operating system refuses the region.
    pub fn new(description: Description, budget: u64) -> Result<Self, OutOfMemory> {
        Self::with_family(description, budget, Family::detect())
    }

    /// The same, computing with a given instruction family.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    ///
    /// # Panics
    /// When this machine does not have the family, or threads cannot be started.
    pub fn with_family(description: Description, budget: u64, family: Family) -> Result<Self, OutOfMemory> {
        assert!(family.available(), "this machine lacks {family:?}");
        let ledger = Ledger::new(budget);
        let scratch = ledger.charge(description.scratch_bytes() as u64, Category::Workspace)?;
        let region = Region::reserve(ledger.budget() as usize).ok_or_else(|| OutOfMemory {
            requested: budget,
            category: Category::Workspace,
            live: ledger.state().live,
            budget,
            largest_hole: 0,
        })?;
        Ok(Self {
            ledger,
            region: Arc::new(region),
            shared: None,
            pool: Pool::new(description.threads),
            description,
            family,
            scratch,
            busy: Mutex::new(()),
        })
    }

    /// The same device, which puts what other ranks read ([`Category::is_shared`]) into `region`.
    ///
    /// # Panics
    /// When the region is smaller than the budget.
    #[must_use]
    pub fn sharing(mut self, region: Arc<Region>) -> Self {
        assert!(region.len() as u64 >= self.ledger.budget(), "the shared region holds less than the budget");
        self.shared = Some(region);
        self
    }

    /// The region that other ranks read.
    pub fn shared_region(&self) -> Option<&Arc<Region>> {
        self.shared.as_ref()
    }

    /// Binds the device's threads to `cores`, one each, but for the calling thread, which is left the first of them: threads
    /// that it starts for other things would inherit its core. Returns whether the operating system did it: not with fewer
    /// cores than threads.
    pub fn pin(&self, cores: &[usize]) -> bool {
        self.pool.pin(cores)
    }

    /// Has all threads carry out `work` with their numbers at the same time, or the calling thread `alone`.
    fn together(&self, alone: bool, work: &(dyn Fn(usize) + Sync)) {
        // A task that panicked left nothing that the next operation reads.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if alone { work(0) } else { self.pool.broadcast(work) }
    }

    /// Carries out `tasks` independent tasks on the pool. Which thread takes which must not matter.
    fn parallel(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.parallel_scratch(tasks, |t, _| task(t));
    }

    /// The same, with the working space of the thread that carries out the task.
    fn parallel_scratch(&self, tasks: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
        let next = AtomicUsize::new(0);
        self.together(tasks <= 1, &|thread| {
            let scratch = self.scratch_of(thread);
            loop {
                let t = next.fetch_add(1, Ordering::Relaxed);
                if t >= tasks {
                    return;
                }
                task(t, scratch);
            }
        });
    }

    /// Splits `len` elements in contiguous parts of a multiple of `grain`, a few a thread.
    fn parts(&self, len: usize, grain: usize) -> (usize, usize) {
        let wanted = len.div_ceil(self.description.threads.max(1) * 4).max(1);
        let size = wanted.div_ceil(grain) * grain;
        (len.div_ceil(size), size)
    }

    /// The working space of a thread of the pool, for that thread.
    #[allow(clippy::mut_from_ref, reason = "each thread takes its own")]
    fn scratch_of(&self, thread: usize) -> &mut [f32] {
        let offset = self.scratch.block.offset as usize + (SHARED_FLOATS + thread * SCRATCH_FLOATS) * 4;
        // SAFETY: the block has room for this many threads; operations run one at a time, and in each a thread takes its own.
        unsafe { std::slice::from_raw_parts_mut(self.region.at(offset).cast(), SCRATCH_FLOATS) }
    }

    /// The working space that the threads of one operation share.
    fn shared_scratch(&self) -> Shared<f32> {
        Shared(self.region.at(self.scratch.block.offset as usize).cast())
    }
}

/// A pointer that tasks of one operation share; each takes a part that no other task takes.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: the pointer is only turned to references by `part`, whose caller promises disjointness.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn of(s: &mut [T]) -> Self {
        Self(s.as_mut_ptr())
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// In bounds, and no other task holds any of them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part<'a>(&self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// A pointer to element `at`.
    fn at(&self, at: usize) -> *mut T {
        self.0.wrapping_add(at)
    }
}
