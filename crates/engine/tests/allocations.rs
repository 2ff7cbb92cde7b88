//! After its first step a rank asks the operating system for nothing: all that is large lies in the ledger.

#[allow(dead_code, unused_imports)]
#[path = "engine/common/mod.rs"]
mod common;

use common::{Job, MODES, Model, settings};
use memwall_engine::Settings;
use memwall_model::Family;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks beyond this are large, bytes.
const LARGE: usize = 64 << 10;

static ARMED: AtomicBool = AtomicBool::new(false);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static LARGE_BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with counters of what all threads take while armed.
struct Counting;

fn count(bytes: usize) {
    if ARMED.load(SeqCst) {
        BLOCKS.fetch_add(1, SeqCst);
        BYTES.fetch_add(bytes, SeqCst);
        LARGE_BLOCKS.fetch_add(usize::from(bytes > LARGE), SeqCst);
    }
}

// SAFETY: every call is handed on to `System` as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, bytes) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counters and resident memory are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks, large blocks and bytes that `work` takes.
fn counted(work: impl FnOnce()) -> [usize; 3] {
    let counters = [&BLOCKS, &LARGE_BLOCKS, &BYTES];
    counters.iter().for_each(|c| c.store(0, SeqCst));
    ARMED.store(true, SeqCst);
    work();
    ARMED.store(false, SeqCst);
    counters.map(|c| c.load(SeqCst))
}

/// Models whose every activation, gradient and chunk of logits is large, in every mode.
fn jobs() -> impl Iterator<Item = Job> {
    Family::ALL.into_iter().cycle().zip(MODES).map(|(family, mode)| {
        let model = Model {
            hidden: 160,
            intermediate: 200,
            heads: 8,
            kv_heads: 8,
            head_dim: 20,
            vocabulary: 600,
            ..Model::of(family)
        };
        let model = model.dropping([0.1; 3]);
        let settings = Settings { sequence: 129, micro_batches: 2, ..settings() };
        let job = Job { packed: true, ..Job::new(model, settings).in_mode(mode) };
        let smallest = model.hidden.min(model.kv_heads * model.head_dim) * job.settings.micro_tokens() * 2;
        assert!(smallest > LARGE, "the job is too small to show anything");
        job
    })
}

#[test]
fn the_counter_sees_large_blocks_of_every_thread() {
    let _turn = alone();
    let large = || drop(std::hint::black_box(vec![1u8; 100 << 10]));
    let [_, n, bytes] = counted(|| {
        large();
        std::thread::spawn(large).join().unwrap();
        let mut grown = vec![0u8; 10];
        grown.reserve_exact(100 << 10);
        std::hint::black_box(grown);
        std::hint::black_box(vec![0u8; LARGE]);
    });
    assert!(n == 3 && bytes >= 3 * (100 << 10), "{n} large blocks, {bytes} bytes");
    large();
    assert_eq!(LARGE_BLOCKS.load(SeqCst), 3, "it counts while it is not armed");
}

#[test]
fn after_the_first_step_and_evaluation_no_large_block_is_taken_outside_the_ledger() {
    let _turn = alone();
    for job in jobs() {
        let (mut rank, batch) = (job.on_cpu(), job.batch(0));
        let mut once = || {
            batch.step(&mut rank).unwrap();
            batch.evaluate(&mut rank).unwrap();
        };
        once();
        let [blocks, large, bytes] = counted(|| (0..5).for_each(|_| once()));
        assert_eq!(large, 0, "large blocks beside the ledger");
        // The small ones are a step's bookkeeping: lists of what blocks keep, of segments, of waiting tasks.
        let a_step = (blocks / 5, bytes / 5);
        assert!(a_step.0 < 60 && a_step.1 < 32 << 10, "{} blocks and {} bytes a step", a_step.0, a_step.1);
    }
}

/// torchtitan issue 3790: memory that grows with every step ends long runs.
#[cfg(target_os = "linux")]
#[test]
fn tt_3790_resident_memory_is_flat() {
    let _turn = alone();
    let resident_pages = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<i64>().unwrap()
    };
    for mode in MODES {
        let job = Job::small(Settings { sequence: 32, ..settings() }).in_mode(mode);
        let (mut rank, batch) = (job.on_cpu(), job.batch(0));
        let mut steps = |n| {
            for _ in 0..n {
                batch.step(&mut rank).unwrap();
                batch.evaluate(&mut rank).unwrap();
            }
        };
        steps(20);
        let before = resident_pages();
        steps(200);
        // A leak of one small activation (6 KiB) a step would be 300 pages.
        let grown = resident_pages() - before;
        assert!(grown < 60, "{grown} pages in 200 steps");
    }
}
