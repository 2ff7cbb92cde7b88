//! The allocator of the fuzz program: counts, and ends the process when an input asks for too much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Exit code of a worker whose input asked for too much memory.
pub const TOO_MUCH_MEMORY: i32 = 77;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The system's allocator, with a count of the bytes that live.
#[derive(Debug)]
pub struct Counting;

impl Counting {
    fn add(size: usize) {
        let live = LIVE.fetch_add(size, Relaxed) + size;
        if live > LIMIT.load(Relaxed) {
            refuse(size);
        }
        PEAK.fetch_max(live, Relaxed);
    }
}

/// Says so without allocating, and ends the process: an error value could be handled, and then nobody would know.
fn refuse(size: usize) -> ! {
    let (before, after) = (b"an allocation goes above the memory limit; bytes: ", b"\n");
    // Digits from the last on, and zeros before the first.
    let mut digits = [b'0'; 20];
    let mut rest = size;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    let zeros = digits.iter().take_while(|d| **d == b'0').count();
    let parts: [&[u8]; 3] = [before, &digits[zeros.min(19)..], after];
    for text in parts {
        // SAFETY: `text` is valid for its length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: it runs nothing of this process any more.
    unsafe { libc::_exit(TOO_MUCH_MEMORY) }
}

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::add(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Begins an input: from here on, `limit` bytes more than live now may live. Returns what lives now.
pub(crate) fn begin(limit: usize) -> usize {
    let live = LIVE.load(Relaxed);
    PEAK.store(live, Relaxed);
    LIMIT.store(live.saturating_add(limit), Relaxed);
    live
}

/// Ends an input that began when `before` bytes lived: the most bytes that it had beyond them.
pub(crate) fn end(before: usize) -> usize {
    LIMIT.store(usize::MAX, Relaxed);
    PEAK.load(Relaxed).saturating_sub(before)
}

/// Limits the address space of this process, for what does not come from the allocator: mapped memory.
pub(crate) fn limit_address_space(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `limit` is a valid rlimit. A system that refuses leaves only the allocator's limit.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
}
