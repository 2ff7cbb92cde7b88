//! Sleeping until a word of shared memory changes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `seen`, at most for `limit`; may wake for no reason. Words may be seen by several processes.
#[cfg(target_os = "linux")]
pub(super) fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the kernel reads a word and a duration that live until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
}

/// Wakes all that sleep on `word`.
#[cfg(target_os = "linux")]
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: the kernel takes the address of a word that lives until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn wait(_: &AtomicU32, _: u32, limit: Duration) {
    std::thread::sleep(limit.min(Duration::from_micros(50)));
}

#[cfg(not(target_os = "linux"))]
pub(super) fn wake(_: &AtomicU32) {}
