//! What the engine's tests share: models, jobs, batches, reference folders, and ranks on any device.

mod batches;
mod jobs;
mod layouts;
mod models;
mod references;
mod wrapped;

pub use batches::Batch;
pub use jobs::*;
pub use layouts::{Layout, Outcome, train as train_share};
pub use models::{Model, families};
pub use references::{Bf16Reference, FOLDERS, Reference, deviation, without_key_bias};
pub use wrapped::{Hook, wrapped};

use memwall_comm::Groups;
use memwall_engine::{AdamWSettings, Decay, Keep, Part, Precision, Rank, Schedule, Settings, Zero};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Cpu, Description};

/// Settings of a step over one micro-batch of 2 x 16, AdamW as in the recipe "plain".
pub fn settings() -> Settings {
    Settings {
        micro_batch: 2,
        micro_batches: 1,
        sequence: 16,
        precision: Precision::F32,
        gradients: Precision::F32,
        deterministic: false,
        zero: Zero::None,
        clip: None,
        seed: 1,
        snapshot: 0,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 10, decay: Decay::Constant },
    }
}

pub const BUDGET: u64 = 256 << 20;

pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(Description { threads }, BUDGET).unwrap()
}

/// A rank of one device.
pub fn rank_on<D: Device>(device: D, spec: &ModelSpec, settings: Settings) -> Rank<D>
where
    D::Buf: Send,
{
    Rank::new(device, Groups::solo(), spec.clone(), settings).unwrap()
}

pub fn weight(rank: &Rank<Cpu>, id: usize) -> Vec<f32> {
    rank.device().read_f32(rank.part(Part::Weight, ParamId(id)))
}
