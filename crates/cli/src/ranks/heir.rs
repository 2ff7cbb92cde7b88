//! What a rank's process inherits from its supervisor: descriptors, and one environment variable that says which they are.

use super::screen::Screen;
use super::system;
use crate::batches::Share;
use crate::failure::Failure;
use crate::profile::Peak;
use indicatif::ProgressDrawTarget;
use memwall_comm::local::Fabric;
use memwall_layout::Mesh;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Name of the variable.
pub(super) const VARIABLE: &str = "MEMWALL_RANK";

/// Its value, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Will {
    /// The rank's number.
    pub(super) rank: usize,
    /// Bytes of each rank's arena, which are its budget.
    pub(super) arena: u64,
    /// Step of the checkpoint to go on from.
    pub(super) from: Option<u64>,
    /// What MFU refers to.
    pub(super) peak: Peak,
    /// The lock of the run folder.
    pub(super) lock: RawFd,
    /// The terminal to show progress on.
    pub(super) terminal: Option<RawFd>,
    /// The memory files, in the order of [`Fabric::files`].
    pub(super) files: Vec<RawFd>,
}

/// What a rank's process has inherited.
#[derive(Debug)]
pub(crate) struct Heir {
    /// The rank's number.
    pub(crate) rank: usize,
    /// Bytes that it may use.
    pub(crate) budget: u64,
    /// Step of the checkpoint to go on from.
    pub(crate) from: Option<u64>,
    /// What MFU refers to.
    pub(crate) peak: Peak,
    /// Held for as long as this process: another run must not enter the folder before all ranks have left it.
    pub(crate) lock: OwnedFd,
    terminal: Option<OwnedFd>,
    files: Vec<OwnedFd>,
}

impl Heir {
    /// Takes the inheritance; `None` in a process that has none, since the user started it.
    ///
    /// # Errors
    /// A variable that no supervisor has written for this process.
    pub(crate) fn take() -> Result<Option<Self>, Failure> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let foreign = |why: &dyn std::fmt::Display| {
            Failure::Refused(format!(
                "the environment variable {VARIABLE} is for the processes that memwall train starts itself, and this is \
                 none of them ({why}): unset it"
            ))
        };
        let text = value.into_string().map_err(|_| foreign(&"it is not text"))?;
        let will: Will = serde_json::from_str(&text).map_err(|e| foreign(&e))?;
        let adopt = |fd| system::adopt(fd).map_err(|e| foreign(&e));
        Ok(Some(Self {
            rank: will.rank,
            budget: will.arena,
            from: will.from,
            peak: will.peak,
            lock: adopt(will.lock)?,
            terminal: will.terminal.map(adopt).transpose()?,
            files: will.files.into_iter().map(adopt).collect::<Result<_, _>>()?,
        }))
    }

    /// What all ranks share.
    ///
    /// # Errors
    /// The memory cannot be mapped, or was made for another number of ranks.
    pub(crate) fn fabric(&mut self, mesh: Mesh, timeout: Duration) -> Result<Fabric, Failure> {
        let files = std::mem::take(&mut self.files);
        Fabric::open(mesh, self.budget, timeout, files)
            .map_err(|e| Failure::Failed(format!("cannot map the memory of {} ranks: {e}", mesh.world())))
    }

    /// The rank among those that share a step's samples.
    pub(crate) fn share(&self, mesh: Mesh) -> Share {
        Share { rank: self.rank, ranks: mesh.data_ranks() }
    }

    /// Where to show progress, if there is a terminal.
    pub(crate) fn screen(&mut self) -> Option<ProgressDrawTarget> {
        self.terminal.take().map(|fd| Screen::new(fd.into()).target())
    }

    /// Set when the supervisor passes on the wish to stop.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        std::thread::spawn(move || match std::io::stdin().read(&mut [0]) {
            Ok(1) => flag.store(true, Ordering::Relaxed),
            // The supervisor is gone. Linux ends this process of itself.
            _ => std::process::exit(1),
        });
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Source;

    #[test]
    fn a_will_is_read_as_it_was_written() {
        for source in [Source::Measured, Source::Saved { date: "2031-05-17".into(), quick: true }] {
            let will = Will {
                rank: 3,
                arena: 1 << 40,
                from: Some(12),
                peak: Peak { flops: 1.5e11, source },
                lock: 4,
                terminal: None,
                files: vec![5, 6],
            };
            let text = serde_json::to_string(&will).unwrap();
            let again: Will = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), text);
            assert!(again.peak == will.peak && again.files == will.files && again.from == will.from);
        }
    }
}
