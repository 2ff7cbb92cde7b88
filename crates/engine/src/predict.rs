//! What a run will cost: the same rank, on the dry device.

use crate::{EngineError, MicroBatch, Rank, Settings};
use memwall_comm::{DryGroup, Traffic};
use memwall_model::ModelSpec;
use memwall_tensor::device::Memory;
use memwall_tensor::{Description, Dry, LedgerState};

/// What a dry run counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Memory after the rank was made: what lives as long as the run.
    pub initial: LedgerState,
    /// Memory after steps and evaluation: peaks are those of the run.
    pub run: LedgerState,
    /// FLOPs that the device carries out in a step, recomputation included.
    pub step_flops: u64,
    /// What a rank puts on the wire in a step.
    pub step_traffic: Traffic,
}

/// Makes a rank on the dry device and runs two steps, and an evaluation if there is held-out data. Two, since
/// the second meets the arena as the first left it, as every later one does.
///
/// # Errors
/// Out of memory: the job does not fit `budget` bytes.
pub fn predict(
    spec: &ModelSpec,
    settings: &Settings,
    description: Description,
    budget: u64,
    evaluates: bool,
) -> Result<Prediction, EngineError> {
    let group = DryGroup::new(0, 1);
    let device = Dry::new(description, budget)?;
    let mut rank = Rank::new(device, Box::new(group.clone()), spec.clone(), *settings)?;
    rank.initialize();
    let initial = rank.device().ledger().state();
    let mut load = |_: usize, _: &mut MicroBatch<'_>| {};
    rank.step(&mut load, 1)?;
    let (flops, traffic) = (rank.device().flops(), group.traffic());
    rank.step(&mut load, 1)?;
    if evaluates {
        rank.evaluate(1, &mut load, 1)?;
    }
    Ok(Prediction { initial, run: rank.device().ledger().state(), step_flops: flops, step_traffic: traffic })
}
