//! What ranks need of the operating system beyond the standard library.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the process that `command` starts inherit descriptors, die with this one, and leave Ctrl-C to it: a terminal sends
/// that to both.
///
/// It dies with the calling thread, which must be one that lasts as long as this process.
pub(super) fn follow(command: &mut Command, descriptors: Vec<RawFd>) {
    let supervisor = std::process::id();
    let prepare = move || {
        #[cfg(target_os = "linux")]
        // SAFETY: sets an attribute of the calling process.
        checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) })?;
        // SAFETY: asks for a number.
        if unsafe { libc::getppid() } as u32 != supervisor {
            // It died before the line above could tell.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        for fd in &descriptors {
            // SAFETY: sets a flag of a descriptor; one that is not there is an error.
            checked(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

fn checked(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// Takes a descriptor that this process was started with, and that nothing else in it knows.
///
/// # Errors
/// There is no such descriptor.
pub(super) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: sets a flag of a descriptor; one that is not there is an error.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and by the caller's word nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds the calling thread, and the threads that it starts from now on, to these cores. Returns whether the operating
/// system did it.
pub(crate) fn bind(cores: &[usize]) -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the set is plain data, for which zeros are valid, and lives through the calls; 0 is the calling thread.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for core in cores.iter().filter(|core| **core < 8 * size_of::<libc::cpu_set_t>()) {
                libc::CPU_SET(*core, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cores;
        false
    }
}

/// Rows and columns of a terminal; `None` where it does not tell.
pub(super) fn window(terminal: BorrowedFd<'_>) -> Option<(u16, u16)> {
    // SAFETY: zeros are a value of the structure, which the call fills.
    let (outcome, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size), size)
    };
    (outcome == 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_bound_to_and_nowhere_else() {
        let cores = memwall_tensor::allowed_cores();
        let Some(last) = cores.last().copied() else { return };
        let seen = std::thread::spawn(move || {
            assert!(bind(&[last]));
            std::thread::spawn(memwall_tensor::allowed_cores).join().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [last]);
        assert_eq!(memwall_tensor::allowed_cores(), cores);
    }

    #[test]
    fn a_descriptor_that_is_not_there_is_not_taken() {
        assert!(adopt(1 << 20).is_err());
    }

    #[test]
    fn a_file_has_no_window() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(window(std::os::fd::AsFd::as_fd(&file)), None);
    }
}
