//! The threads of a CPU device: made once, parked between operations, and (if told) each bound to its own core.
//!
//! The thread that issues operations is thread 0 and works along. Who waits spins for a moment, since the next operation
//! usually comes at once, and sleeps after that, since with more threads than cores spinning takes the core from
//! whoever is waited for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long who waits spins.
const SPIN: Duration = Duration::from_micros(40);

/// A number that only grows, and that threads wait for.
#[derive(Debug, Default)]
struct Signal {
    value: AtomicU64,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

impl Signal {
    fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Adds one, and wakes who sleeps.
    fn raise(&self) -> u64 {
        let value = self.value.fetch_add(1, Ordering::SeqCst) + 1;
        // A sleeper counts itself and looks at the value again under the lock, so either it sees this value or it is seen here.
        if *lock(&self.sleepers) > 0 {
            self.wake.notify_all();
        }
        value
    }

    /// Waits until the number is at least `value`.
    fn wait(&self, value: u64) {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                if self.get() >= value {
                    return;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= SPIN {
                break;
            }
        }
        let mut sleepers = lock(&self.sleepers);
        *sleepers += 1;
        while self.value.load(Ordering::SeqCst) < value {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
        *sleepers -= 1;
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A piece of work that every thread carries out with its number.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// What threads share.
#[derive(Default)]
struct Common {
    /// Number of pieces of work begun.
    begun: Signal,
    /// Number of times that any worker finished one.
    finished: Signal,
    /// The piece of work under way; `None` tells workers to end.
    work: Mutex<Option<Work<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// How often any thread has come to the barrier, and how often all have.
    arrived: AtomicUsize,
    passed: Signal,
}

/// Persistent threads that carry out one piece of work at a time.
pub(super) struct Pool {
    common: Arc<Common>,
    threads: usize,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's among them.
    ///
    /// # Panics
    /// When the operating system starts no thread.
    pub(super) fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let common = Arc::new(Common::default());
        let workers = (1..threads)
            .map(|number| {
                let common = common.clone();
                std::thread::Builder::new()
                    .name(format!("memwall-{number}"))
                    .spawn(move || common.serve(number))
                    .expect("the operating system starts threads")
            })
            .collect();
        Self { common, threads, workers }
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Has every thread carry out `work` with its number, 0 for the caller, and returns when all have. One call at a time.
    pub(super) fn broadcast(&self, work: Work<'_>) {
        if self.threads == 1 {
            return work(0);
        }
        // SAFETY: only the lifetime changes, and this function does not return, not even by a panic, before every worker
        // has finished with `work`.
        let lasting = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        *lock(&self.common.work) = Some(lasting);
        let finished = self.common.finished.get() + self.workers.len() as u64;
        self.common.begun.raise();
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        self.common.finished.wait(finished);
        *lock(&self.common.work) = None;
        let others = lock(&self.common.panic).take();
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    /// Waits, inside a piece of work, until every thread has come here. Work that calls it must not panic.
    pub(super) fn barrier(&self) {
        if self.threads == 1 {
            return;
        }
        let before = self.common.arrived.fetch_add(1, Ordering::SeqCst);
        if before % self.threads == self.threads - 1 {
            self.common.passed.raise();
        }
        let turn = before / self.threads + 1;
        self.common.passed.wait(turn as u64);
    }

    /// Binds worker `i` to core `cores[i]`; the calling thread, number 0, is left the first one, but not bound: threads that it
    /// starts for other things would inherit that. Returns whether the operating system did it.
    pub(super) fn pin(&self, cores: &[usize]) -> bool {
        if cores.len() < self.threads {
            return false;
        }
        let bound = std::sync::atomic::AtomicBool::new(true);
        self.broadcast(&|thread| {
            if thread > 0 && !bind(cores[thread]) {
                bound.store(false, Ordering::Relaxed);
            }
        });
        bound.into_inner()
    }
}

/// Binds the calling thread to a core.
fn bind(core: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the set is plain data, for which zeros are valid, and lives through both calls; 0 is the calling thread.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if core >= 8 * size_of::<libc::cpu_set_t>() {
                return false;
            }
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = core;
        false
    }
}

/// The cores that the calling thread may run on, in ascending order; empty where the operating system does not say.
pub fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the set is plain data, for which zeros are valid, and lives through the calls; 0 is the calling thread.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0 {
                return (0..8 * size_of::<libc::cpu_set_t>())
                    .filter(|core| libc::CPU_ISSET(*core, &set))
                    .collect();
            }
        }
    }
    Vec::new()
}

impl Common {
    /// A worker's life.
    fn serve(&self, number: usize) {
        let mut begun = 0;
        loop {
            begun += 1;
            self.begun.wait(begun);
            let Some(work) = *lock(&self.work) else { return };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(number))) {
                *lock(&self.panic) = Some(panic);
            }
            self.finished.raise();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        *lock(&self.common.work) = None;
        self.common.begun.raise();
        for worker in self.workers.drain(..) {
            // Workers catch what panics in them.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_carries_out_every_piece_of_work_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            let done: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..500 {
                pool.broadcast(&|thread| {
                    done[thread].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 500));
        }
    }

    #[test]
    fn nobody_passes_a_barrier_before_all_have_come() {
        let pool = Pool::new(4);
        let come = AtomicUsize::new(0);
        pool.broadcast(&|thread| {
            for turn in 1..=300 {
                if (turn + thread) % 97 == 0 {
                    // Long enough that the others fall asleep.
                    std::thread::sleep(3 * SPIN);
                }
                come.fetch_add(1, Ordering::SeqCst);
                pool.barrier();
                assert!(come.load(Ordering::SeqCst) >= 4 * turn);
                pool.barrier();
            }
        });
        assert_eq!(come.into_inner(), 1200);
    }

    #[test]
    fn what_panics_in_any_thread_panics_in_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.broadcast(&|thread| assert_ne!(thread, bad, "as it should"));
            }));
            assert!(outcome.is_err());
        }
        let done = AtomicUsize::new(0);
        pool.broadcast(&|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn threads_are_bound_to_the_cores_that_they_are_given() {
        let cores = allowed_cores();
        if cores.len() < 2 {
            return;
        }
        let pool = Pool::new(2);
        assert!(!pool.pin(&cores[..1]));
        assert!(pool.pin(&cores[..2]));
        pool.broadcast(&|thread| {
            let allowed = allowed_cores();
            assert_eq!(allowed, if thread == 0 { cores.clone() } else { vec![cores[1]] });
        });
    }
}
