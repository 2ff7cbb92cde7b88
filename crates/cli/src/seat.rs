//! A rank's place among the others: its groups, its share of the samples, its device.

use crate::batches::Share;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::ranks;
use crate::setup::Setup;
use indicatif::ProgressDrawTarget;
use memwall_comm::Groups;
use memwall_comm::local::Fabric;
use memwall_tensor::Cpu;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A rank's place among the others, and what it hears from outside.
pub(crate) struct Seat {
    /// Its share of the samples.
    pub(crate) share: Share,
    /// Its groups.
    pub(crate) groups: Groups<Cpu>,
    /// What it shares with the others, if there are any.
    pub(crate) fabric: Option<Fabric>,
    /// Set when the user wants it to stop.
    pub(crate) stop: Arc<AtomicBool>,
    /// Steps after which it ends.
    pub(crate) stop_after: Option<u64>,
    /// Where progress is shown.
    pub(crate) screen: Option<ProgressDrawTarget>,
}

impl Seat {
    /// Of a rank that is alone.
    pub(crate) fn alone(stop: Arc<AtomicBool>) -> Self {
        let (share, groups, screen) = (Share::ALL, Groups::solo(), Progress::screen());
        Self { share, groups, fabric: None, stop, stop_after: None, screen }
    }

    /// Stops the other ranks, unless the failure is that all stop. The rank's groups must still be there: without them it
    /// has ended, and the others say that instead.
    pub(crate) fn tell<T>(
        fabric: Option<&Fabric>,
        rank: usize,
        outcome: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let (Some(fabric), Err(failure)) = (fabric, &outcome)
            && !matches!(failure, Failure::Interrupted(_))
        {
            fabric.fail_rank(rank, &failure.to_string());
        }
        outcome
    }
}

/// The rank's device, on cores of its own.
pub(crate) fn device(setup: &Setup, rank: usize, fabric: Option<&Fabric>) -> Result<Cpu, Failure> {
    let threads = setup.description.threads;
    // With fewer threads than cores, which cores they should have is nobody's to say: another run may be on the first ones.
    let cores = memwall_tensor::allowed_cores();
    let own = (cores.len() == setup.threads().threads).then(|| &cores[rank * threads..][..threads]);
    if let Some(own) = own.filter(|_| setup.ranks() > 1) {
        // The calling thread computes too, and is to stay off the other ranks' cores.
        ranks::bind(own);
    }
    let device = Cpu::new(setup.description, setup.budget).map_err(|e| Failure::Failed(e.to_string()))?;
    if let Some(own) = own {
        device.pin(own);
    }
    Ok(match fabric {
        Some(fabric) => device.sharing(fabric.arena(rank).clone()),
        None => device,
    })
}
