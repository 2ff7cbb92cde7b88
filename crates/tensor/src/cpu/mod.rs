//! The CPU device: one region of anonymous memory under the ledger's arena, one pool of threads.

mod attention;
mod bounds;
mod family;
mod gemm;
mod loss;
mod memory;
mod norms;
mod optimizer;
mod pointwise;
mod region;

pub use bounds::Traffic;
pub use family::Family;
pub use memory::CpuBuf;

use crate::ledger::Charge;
use crate::{Category, Description, Ledger, OutOfMemory, Slice, SliceMut};
use rayon::prelude::*;
use region::Region;
use std::sync::{Arc, Mutex, PoisonError};

/// Floats of working space a thread: packed operands of [`gemm`] or tiles of [`attention`].
pub(crate) const SCRATCH_FLOATS: usize = {
    let (a, b) = (gemm::SCRATCH_FLOATS, attention::SCRATCH_FLOATS);
    if a > b { a } else { b }
};

/// A CPU device: computes with the threads and instructions of this machine. Results do not depend on
/// either.
#[derive(Debug)]
pub struct Cpu {
    ledger: Ledger,
    region: Arc<Region>,
    pool: rayon::ThreadPool,
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
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(description.threads)
            .thread_name(|i| format!("memwall-{i}"))
            .build()
            .expect("the operating system starts threads");
        Ok(Self {
            ledger,
            region: Arc::new(region),
            pool,
            description,
            family,
            scratch,
            busy: Mutex::new(()),
        })
    }

    /// Carries out `tasks` independent tasks on the pool. Which thread takes which must not matter.
    fn parallel(&self, tasks: usize, task: impl Fn(usize) + Sync + Send) {
        // A task that panicked left nothing that the next operation reads.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks <= 1 || self.description.threads == 1 {
            (0..tasks).for_each(task);
        } else {
            self.pool.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(task));
        }
    }

    /// Splits `len` elements in contiguous parts of a multiple of `grain`, a few a thread.
    fn parts(&self, len: usize, grain: usize) -> (usize, usize) {
        let wanted = len.div_ceil(self.description.threads.max(1) * 4).max(1);
        let size = wanted.div_ceil(grain) * grain;
        (len.div_ceil(size), size)
    }

    /// The working space of the thread that calls.
    fn scratch(&self) -> Shared<f32> {
        let thread = self.pool.current_thread_index().unwrap_or(0);
        let offset = self.scratch.block.offset as usize + thread * Description::SCRATCH_BYTES_PER_THREAD;
        Shared(self.region.at(offset).cast())
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
