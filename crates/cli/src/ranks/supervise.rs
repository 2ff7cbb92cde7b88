//! The supervisor: starts all ranks, and sees to it that they end together.

use super::heir::Will;
use super::process::RankProcess;
use super::verdict::{self, Ended};
use super::voice::News;
use crate::failure::{Failure, Outcome};
use crate::job::show_bytes;
use crate::profile::Peak;
use crate::run_folder::RunFolder;
use crate::setup::Setup;
use crate::stop;
use memwall_comm::local::Fabric;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often the supervisor looks whether a rank has ended.
const LOOK: Duration = Duration::from_millis(10);

/// What ranks have to end by themselves once one has failed. They notice within 50 ms wherever they wait for each other.
const GRACE: Duration = Duration::from_secs(1);

/// What the supervisor has found out and keeps for its ranks.
pub(crate) struct Kept<'a> {
    /// The job.
    pub(crate) setup: &'a Setup,
    /// The run folder, which is locked.
    pub(crate) folder: &'a RunFolder,
    /// Step of the checkpoint to go on from.
    pub(crate) from: Option<u64>,
    /// What MFU refers to.
    pub(crate) peak: Peak,
}

/// Runs a job that has been checked on ranks of its own.
///
/// # Errors
/// They cannot be started, or did not end well.
pub(crate) fn supervise(kept: &Kept<'_>) -> Result<(), Failure> {
    let (setup, ranks) = (kept.setup, kept.setup.ranks());
    let cannot = |e: io::Error| Failure::Failed(format!("cannot start {ranks} ranks: {e}"));
    let timeout = Duration::from_secs(setup.job.parallel.timeout);
    let fabric = Fabric::new(setup.mesh, setup.budget, timeout).map_err(|e| {
        Failure::Failed(format!(
            "cannot reserve {} of shared memory for each of {ranks} ranks: {e}; a smaller memory.budget may help",
            show_bytes(setup.budget)
        ))
    })?;
    let logs = kept.folder.path("logs");
    kept.folder.disk().make_folder(&logs).fail()?;
    let terminal = io::stderr().is_terminal().then(|| io::stderr().as_fd().try_clone_to_owned());
    let terminal = terminal.transpose().map_err(cannot)?;
    let interrupts = stop::interrupts();
    let files: Vec<_> = fabric.files().iter().map(AsRawFd::as_raw_fd).collect();
    let mut world = World { ranks: Vec::with_capacity(ranks), fabric };
    for rank in 0..ranks {
        let first = rank == 0;
        let will = Will {
            rank,
            arena: setup.budget,
            from: kept.from,
            peak: kept.peak.clone(),
            lock: kept.folder.lock().as_raw_fd(),
            terminal: terminal.as_ref().filter(|_| first).map(AsRawFd::as_raw_fd),
            files: files.clone(),
        };
        let log = logs.join(format!("rank-{rank}.log"));
        let process = RankProcess::start(&will, log, first.then(|| world.news())).map_err(cannot)?;
        world.ranks.push(process);
    }
    world.watch(&interrupts)
}

/// All ranks.
struct World {
    ranks: Vec<RankProcess>,
    fabric: Fabric,
}

impl World {
    /// Whether what a rank prints is to be shown: not once one has failed, which the verdict is about.
    fn news(&self) -> News {
        let fabric = self.fabric.clone();
        Arc::new(move || fabric.failure().is_none())
    }

    /// Waits until all have ended.
    fn watch(&mut self, interrupts: &AtomicU32) -> Result<(), Failure> {
        let lost = |e: io::Error| Failure::Failed(format!("cannot watch over the ranks: {e}"));
        let (mut asked, mut failed) = (false, None);
        loop {
            let mut running = 0;
            for process in &mut self.ranks {
                match process.status().map_err(lost)? {
                    None => running += 1,
                    Some(status) if !verdict::well(status) && failed.is_none() => {
                        self.fabric.fail(&verdict::how(process.rank(), status));
                        failed = Some((process.rank(), Instant::now()));
                    }
                    Some(_) => {}
                }
            }
            if running == 0 {
                break;
            }
            match interrupts.load(Ordering::Relaxed) {
                0 => {}
                1 if asked => {}
                1 => {
                    asked = true;
                    self.ranks.iter_mut().for_each(RankProcess::ask_to_stop);
                }
                _ => {
                    self.ranks.iter_mut().for_each(RankProcess::kill);
                    self.ended().map_err(lost)?;
                    return Err(Failure::Told(verdict::INTERRUPTED as u8));
                }
            }
            if failed.is_some_and(|(_, since)| since.elapsed() >= GRACE) {
                self.ranks.iter_mut().for_each(RankProcess::kill);
            }
            std::thread::sleep(LOOK);
        }
        let said = self.fabric.failure().and_then(|(rank, reason)| Some((rank?, reason)));
        verdict::verdict(&self.ended().map_err(lost)?, failed.map(|(rank, _)| rank), said)
    }

    fn ended(&mut self) -> io::Result<Vec<Ended>> {
        self.ranks.iter_mut().map(RankProcess::ended).collect()
    }
}
