//! Ctrl-C: the run stops after the step that is under way; a second time it stops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Exit code of a process that Ctrl-C has ended, as shells count.
const INTERRUPTED: i32 = 130;

/// For a run of this process alone: set at the first Ctrl-C; the second ends the process.
pub(crate) fn signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    // Without a handler Ctrl-C ends the process as usual, and the last checkpoint stands.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        tell_how();
    });
    stop
}

/// For a supervisor: how often the user has pressed Ctrl-C.
pub(crate) fn interrupts() -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let counter = count.clone();
    // As above; ranks end with the supervisor.
    let _ = ctrlc::set_handler(move || {
        if counter.fetch_add(1, Ordering::Relaxed) == 0 {
            tell_how();
        }
    });
    count
}

fn tell_how() {
    complain!("stopping after this step (again to stop at once)");
}
