//! Random jobs: models, settings and batches, and what a run of them leaves behind.

use super::{Batch, Model, cpu, models::models, rank_on, settings};
use memwall_engine::{Keep, Part, Precision, Rank, Settings};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::Cpu;
use memwall_tensor::device::{Device, Memory};
use proptest::prelude::*;

/// Proptest settings: `cases` cases where PROPTEST_CASES does not say how many, and no files beside the sources.
pub fn cases(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// A model with what to do to it.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub model: Model,
    pub settings: Settings,
    /// Whether sequences are made of several documents.
    pub packed: bool,
    pub frozen: Frozen,
}

/// What of a model is not trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frozen {
    Nothing,
    /// Norms and biases.
    Vectors,
    /// The embedding, and the head's matrix where it is the same.
    Embedding,
    /// The matrices of every second unit.
    SomeMatrices,
    /// All but the last units.
    FirstUnits,
}

/// Every way to freeze something.
pub const FROZEN: [Frozen; 4] =
    [Frozen::Vectors, Frozen::Embedding, Frozen::SomeMatrices, Frozen::FirstUnits];

/// Every way to keep weights and gradients: precision, that of the gradients, deterministic.
pub const MODES: [(Precision, Precision, bool); 6] = [
    (Precision::F32, Precision::F32, false),
    (Precision::F32, Precision::Bf16, false),
    (Precision::F32, Precision::F32, true),
    (Precision::Bf16, Precision::F32, false),
    (Precision::Bf16, Precision::Bf16, false),
    (Precision::Bf16, Precision::Bf16, true),
];

prop_compose! {
    /// Jobs, with odd and even sequences on both sides of a tile of attention (64 tokens).
    pub fn jobs()(
        model in models(),
        sequence in prop_oneof![4 => 1usize..40, 1 => 63usize..=67],
        micro_batch in 1usize..=3,
        micro_batches in 1usize..=4,
        mode in prop::sample::select(&MODES[..]),
        all: bool,
        packed: bool,
        clip in prop::option::of(0.1f64..2.0),
        seed: u64,
    ) -> Job {
        let keep = if all { Keep::ALL } else { Keep::INPUT };
        let settings = Settings { sequence, micro_batch, micro_batches, keep, clip, seed, ..settings() };
        Job { model, settings, packed, frozen: Frozen::Nothing }.in_mode(mode)
    }
}

impl Job {
    /// A model under `settings`.
    pub fn new(model: Model, settings: Settings) -> Self {
        Self { model, settings, packed: false, frozen: Frozen::Nothing }
    }

    /// The small model under `settings`.
    pub fn small(settings: Settings) -> Self {
        Self::new(Model::SMALL, settings)
    }

    /// The model, with what is frozen of it.
    pub fn spec(&self) -> ModelSpec {
        let mut spec = self.model.spec();
        let last = spec.units.len() - 1;
        for (unit, params) in spec.units.iter().map(|u| u.params.clone()).enumerate().collect::<Vec<_>>() {
            for p in params.iter().map(|p| p.0) {
                let matrix = spec.params[p].shape.len() == 2;
                spec.params[p].frozen = match self.frozen {
                    Frozen::Nothing => false,
                    Frozen::Vectors => !matrix,
                    Frozen::Embedding => unit == 0,
                    Frozen::SomeMatrices => matrix && unit % 2 == 0,
                    Frozen::FirstUnits => unit < last,
                };
            }
        }
        spec
    }

    /// The same in one of [`MODES`].
    pub fn in_mode(self, (precision, gradients, deterministic): (Precision, Precision, bool)) -> Self {
        Self { settings: Settings { precision, gradients, deterministic, ..self.settings }, ..self }
    }

    /// The same with `f` of its settings.
    pub fn with(mut self, f: impl FnOnce(&mut Settings)) -> Self {
        f(&mut self.settings);
        self
    }

    /// An initialized rank.
    pub fn rank<D: Device>(&self, device: D) -> Rank<D>
    where
        D::Buf: Send,
    {
        let mut rank = rank_on(device, &self.spec(), self.settings);
        rank.initialize();
        rank
    }

    /// An initialized rank on the CPU.
    pub fn on_cpu(&self) -> Rank<Cpu> {
        self.rank(cpu(2))
    }

    /// The same whose vectors are not all zeros and ones, so that norms and biases matter.
    pub fn uneven_on_cpu(&self) -> Rank<Cpu> {
        let mut rank = self.on_cpu();
        for p in params(&rank).filter(|p| rank.spec().param(*p).shape.len() == 1).collect::<Vec<_>>() {
            change(&mut rank, p, |i, x| x + 0.3 * (i as f32 + p.0 as f32).sin());
        }
        rank
    }

    /// The step's batch number `index`.
    pub fn batch(&self, index: u64) -> Batch {
        let s = &self.settings;
        let sequences = s.micro_batches * s.micro_batch;
        Batch::random(sequences, s.sequence, self.model.vocabulary, self.packed, index, s.seed)
    }
}

/// All parameters of a rank.
pub fn params<D: Device>(rank: &Rank<D>) -> impl Iterator<Item = ParamId> + use<D> {
    (0..rank.spec().params.len()).map(ParamId)
}

/// The parameter of this name.
pub fn param(spec: &ModelSpec, name: &str) -> ParamId {
    ParamId(spec.params.iter().position(|p| p.name == name).unwrap_or_else(|| panic!("no {name}")))
}

/// Jobs of which something may be frozen.
pub fn frozen_jobs() -> impl Strategy<Value = Job> {
    let some = prop::sample::select(&FROZEN[..]);
    (jobs(), prop_oneof![Just(Frozen::Nothing), some]).prop_map(|(job, frozen)| Job { frozen, ..job })
}

/// What a rank's state is made of.
pub const PARTS: [Part; 3] = [Part::Weight, Part::FirstMoment, Part::SecondMoment];

/// The bits of every weight and moment.
pub fn state_bits<D: Device>(rank: &Rank<D>) -> Vec<u32> {
    params(rank)
        .flat_map(|p| PARTS.map(|part| rank.device().read_f32(rank.part(part, p))))
        .flatten()
        .map(f32::to_bits)
        .collect()
}

/// Gives `to` the weights of `from`.
pub fn copy_weights(from: &Rank<Cpu>, to: &mut Rank<Cpu>) {
    for p in params(from) {
        set(to, Part::Weight, p, &from.device().read_f32(from.part(Part::Weight, p)));
    }
}

/// Sets a part of a parameter's state.
pub fn set(rank: &mut Rank<Cpu>, part: Part, p: ParamId, values: &[f32]) {
    let (device, dst) = rank.part_mut(part, p);
    device.write(dst, bytemuck::cast_slice(values));
}

/// Replaces a parameter's elements by `f(index, element)`.
pub fn change(rank: &mut Rank<Cpu>, p: ParamId, f: impl Fn(usize, f32) -> f32) {
    let mut values = rank.device().read_f32(rank.part(Part::Weight, p));
    values.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x));
    set(rank, Part::Weight, p, &values);
}

/// The last step's gradient of every parameter.
pub fn gradients(rank: &Rank<Cpu>) -> Vec<Vec<f32>> {
    params(rank).map(|p| rank.gradient(p)).collect()
}

/// Where a gradient is zero by cancellation (that of the queries of a sequence of one token, say), f32 leaves
/// rounding errors of its terms: below this share of the largest gradient of all.
pub const CANCELLED: f64 = 2e-6;

/// Sums of the same terms in another order, or rounded once more: some units in the last place of each of up to a
/// few hundred terms, relative to the tensor's largest element.
pub const REORDERED: f64 = 5e-6;

/// Size of the largest element.
pub fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
}

/// Says which gradient is not near its counterpart, relative to the largest of its tensor or of all.
pub fn near(a: &[Vec<f32>], b: &[Vec<f32>]) -> Result<(), String> {
    assert_eq!(a.len(), b.len());
    let all = largest(&b.concat());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len());
        let apart: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        let (apart, limit) = (largest(&apart), REORDERED * largest(b) + CANCELLED * all);
        if apart.is_nan() || apart > limit {
            return Err(format!("parameter {i}: {apart:e} apart, over {limit:e}"));
        }
    }
    Ok(())
}

/// What some steps leave behind, to the bit.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// Loss and gradient norm of each step.
    pub steps: Vec<[u64; 2]>,
    /// Weights and moments at the end.
    pub state: Vec<u32>,
}

/// Carries out a step on each batch.
pub fn trace<D: Device>(rank: &mut Rank<D>, batches: &[Batch]) -> Trace {
    let steps = batches
        .iter()
        .map(|b| b.step(rank).unwrap())
        .map(|r| [r.loss.to_bits(), r.gradient_norm.to_bits()])
        .collect();
    Trace { steps, state: state_bits(rank) }
}
