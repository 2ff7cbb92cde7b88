//! A save takes no large block from the operating system: tensors go from the device to the file a piece at a time.

mod common;

use memwall_checkpoint::{Disk, RunState, Store};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks above this count as large.
const LARGE: usize = 256 << 10;

static LARGE_BLOCKS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE_BLOCKS.fetch_add(u64::from(layout.size() > LARGE), Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn saving_and_saving_again_takes_no_large_block() {
    let mut rank = common::rank(128, 1024, 1);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let mut state =
        RunState { step: 1, samples: 0, tokens: 0, data: "d".into(), job: "j".into(), code: "c".into() };
    let before = LARGE_BLOCKS.load(Relaxed);
    for step in 1..4 {
        state.step = step;
        store.save(&mut rank, &state).unwrap();
    }
    assert_eq!(LARGE_BLOCKS.load(Relaxed), before);
    // The counter can count.
    drop(std::hint::black_box(vec![1u8; LARGE + 1]));
    assert_eq!(LARGE_BLOCKS.load(Relaxed), before + 1);
}
