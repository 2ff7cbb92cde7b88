//! What a run will cost: the same rank, on the dry device.
//!
//! [`predict_by_running`] runs it as it is. [`predict`] comes to the same, event by event and offset by offset, in a
//! fraction of the time: it makes the rank, but runs a step of a model that has one block of each kind (`tape.rs`),
//! and replays what these blocks did for all that are like them (`compose.rs`).

mod compose;
mod peak;
mod tape;

pub use peak::Alive;

use crate::{EngineError, MicroBatch, Rank, Settings};
use memwall_comm::{Groups, Traffic};
use memwall_layout::Mesh;
use memwall_model::ModelSpec;
use memwall_tensor::device::Memory;
use memwall_tensor::{Block, Category, Change, Description, Dry, Event, Flops, LedgerState, Moment, Phase};
use std::sync::Arc;

/// What a dry run counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Memory after the rank was made: what lives as long as the run.
    pub initial: LedgerState,
    /// Memory after steps, evaluation and checkpoint: peaks are those of the run.
    pub run: LedgerState,
    /// FLOPs that the device carries out in a step, recomputation included.
    pub step_flops: Flops,
    /// What the rank moves between its memory and others' in a step, along the axes of each group ([`Groups::AXES`]).
    pub step_traffic: [Traffic; 3],
    /// What happens to memory, in order.
    pub events: Events,
}

/// Which rank of which mesh is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The mesh.
    pub mesh: Mesh,
    /// The rank's number in it.
    pub rank: usize,
}

impl Place {
    /// The only rank of one device.
    pub const SINGLE: Place = Place { mesh: Mesh::SINGLE, rank: 0 };
}

/// What happens to a rank's memory, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Events {
    /// The device's own working space, which is taken before anyone can look.
    pub device: Event,
    /// While the rank is made.
    pub init: Arc<[Event]>,
    /// In one micro-batch of a step. All are alike, and nothing happens between them or after the last.
    pub micro_batch: Arc<[Event]>,
    /// In one micro-batch of an evaluation; all are alike. Empty where nothing is evaluated.
    pub evaluation: Arc<[Event]>,
}

impl Events {
    fn new(
        description: Description,
        init: Vec<Event>,
        micro_batch: Vec<Event>,
        evaluation: Vec<Event>,
    ) -> Self {
        let block =
            Block { offset: 0, bytes: description.scratch_bytes() as u64, category: Category::Workspace };
        let device = Event { change: Change::Take, block, moment: Moment::default() };
        Self { device, init: init.into(), micro_batch: micro_batch.into(), evaluation: evaluation.into() }
    }

    /// All of them, each kind of micro-batch once.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        [&self.device].into_iter().chain(&*self.init).chain(&*self.micro_batch).chain(&*self.evaluation)
    }
}

/// What [`predict_by_running`] predicts, in about a millisecond for a model of billions of parameters.
///
/// # Errors
/// Out of memory: the job does not fit `budget` bytes. Those of [`Rank::new`].
pub fn predict(
    spec: &ModelSpec,
    settings: &Settings,
    place: Place,
    description: Description,
    budget: u64,
    evaluates: bool,
) -> Result<Prediction, EngineError> {
    match compose::predict(spec, settings, place, description, budget, evaluates)? {
        Some(prediction) => Ok(prediction),
        // A unit handed on more than one tensor, or kept something beyond its backward.
        None => predict_by_running(spec, settings, place, description, budget, evaluates),
    }
}

/// Makes a rank on the dry device and runs a step, an evaluation if there is held-out data, and a second step, which
/// meets the arena as every later one does.
///
/// # Errors
/// As of [`predict`].
pub fn predict_by_running(
    spec: &ModelSpec,
    settings: &Settings,
    place: Place,
    description: Description,
    budget: u64,
    evaluates: bool,
) -> Result<Prediction, EngineError> {
    let device = Dry::new(description, budget)?;
    let ledger = device.ledger().clone();
    ledger.record();
    let mut rank = Rank::new(device, Groups::dry(place.mesh, place.rank), spec.clone(), *settings)?;
    rank.initialize();
    rank.round_if_stale()?;
    let before = rank.groups().traffic();
    let initial = ledger.state();
    let init = ledger.recorded();
    let mut load = |_: usize, _: &mut MicroBatch<'_>| {};
    ledger.record();
    rank.step(&mut load, 1)?;
    let mut step = ledger.recorded();
    step.truncate(step.len() / settings.micro_batches.max(1));
    let (step_flops, step_traffic) = (flops(rank.device(), spec.units.len()), rank.groups().traffic());
    let step_traffic = [0, 1, 2].map(|group| step_traffic[group] - before[group]);
    ledger.record();
    if evaluates {
        rank.evaluate(1, &mut load, 1)?;
    }
    let evaluation = ledger.recorded();
    rank.step(&mut load, 1)?;
    rank.begin_checkpoint();
    let run = ledger.state();
    Ok(Prediction {
        initial,
        run,
        step_flops,
        step_traffic,
        events: Events::new(description, init, step, evaluation),
    })
}

/// FLOPs of the steps so far.
fn flops(device: &Dry, units: usize) -> Flops {
    let step = [Phase::Forward, Phase::Backward, Phase::Optimizer];
    step.iter().flat_map(|p| (0..units).map(|u| device.work(*p, u)).chain([device.work(*p, None)])).sum()
}
