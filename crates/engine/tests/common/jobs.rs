//! Random jobs: small models of every shape, settings, batches, and what a run of them leaves behind.

use super::{cpu, from_slices, rank_on, settings};
use memwall_comm::Solo;
use memwall_engine::{EngineError, Keep, Part, Rank, Settings, StepReport};
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Cpu, math};
use proptest::prelude::*;

/// Proptest settings: `cases` cases, and no files beside the sources.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub tied: bool,
}

impl Sizes {
    /// A model of two grouped heads on each key/value head, for tests of one fixed model.
    pub const SMALL: Sizes = Sizes {
        hidden: 24,
        intermediate: 33,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        vocabulary: 61,
        tied: false,
    };

    /// The model, with initial matrices large enough that every term of a gradient counts.
    pub fn spec(&self) -> ModelSpec {
        let config = serde_json::json!({
            "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied, "initializer_range": 0.2,
        });
        ModelSpec::new(ModelConfig::from_value(&config).unwrap())
    }

    /// Keeps gradients from being all rounding error: of one or two numbers, a norm leaves almost nothing that a
    /// small step changes.
    pub fn well_conditioned(&mut self) {
        self.hidden += 2;
    }

    /// The same, tied or not.
    pub fn tied(self, tied: bool) -> Self {
        Sizes { tied, ..self }
    }
}

prop_compose! {
    /// Sizes that fit no vector width, tile or block in particular.
    pub fn sizes()(
        hidden in 1usize..72,
        intermediate in 1usize..90,
        layers in 1usize..=3,
        kv_heads in 1usize..=3,
        group in 1usize..=3,
        half in 1usize..=9,
        vocabulary in prop::sample::select(&[2usize, 17, 64, 257][..]),
        tied: bool,
    ) -> Sizes {
        let heads = kv_heads * group;
        Sizes { hidden, intermediate, layers, heads, kv_heads, head_dim: 2 * half, vocabulary, tied }
    }
}

/// A model with what to do to it.
#[derive(Debug, Clone)]
pub struct Job {
    pub sizes: Sizes,
    pub settings: Settings,
}

prop_compose! {
    /// Jobs, with odd and even sequences on both sides of a tile of attention (64 tokens).
    pub fn jobs()(
        sizes in sizes(),
        sequence in prop_oneof![4 => 1usize..40, 1 => 63usize..=67],
        micro_batch in 1usize..=3,
        micro_batches in 1usize..=4,
        deterministic: bool,
        all: bool,
        clip in prop::option::of(0.1f64..2.0),
        seed: u64,
    ) -> Job {
        let keep = if all { Keep::ALL } else { Keep::INPUT };
        let settings =
            Settings { sequence, micro_batch, micro_batches, deterministic, keep, clip, seed, ..settings() };
        Job { sizes, settings }
    }
}

impl Job {
    /// The small model under `settings`.
    pub fn small(settings: Settings) -> Self {
        Self { sizes: Sizes::SMALL, settings }
    }

    /// An initialized rank.
    pub fn rank<D: Device>(&self, device: D) -> Rank<D>
    where
        Solo: memwall_comm::Group<D>,
    {
        let mut rank = rank_on(device, &self.sizes.spec(), self.settings);
        rank.initialize();
        rank
    }

    /// An initialized rank on the CPU.
    pub fn on_cpu(&self) -> Rank<Cpu> {
        self.rank(cpu(2))
    }

    /// The step's batch number `index`.
    pub fn batch(&self, index: u64) -> Batch {
        let s = &self.settings;
        Batch::random(s.micro_batches * s.micro_batch, s.sequence, self.sizes.vocabulary, s.seed ^ index)
    }
}

/// The sequences of a step, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
}

impl Batch {
    /// Random tokens and targets. Sequence `i` ignores a share of its targets that grows with `i`, so that long
    /// ones differ in how many count; none ignores its first.
    pub fn random(sequences: usize, length: usize, vocabulary: usize, seed: u64) -> Self {
        let key = math::stream_key(seed, "batch");
        let draw = |i: usize, below: usize| (math::random_u64(key, i as u64) % below as u64) as i32;
        let n = sequences * length;
        let ignored =
            |i: usize| !i.is_multiple_of(length) && draw(2 * n + i, sequences + 1) < (i / length) as i32;
        Self {
            tokens: (0..n).map(|i| draw(i, vocabulary)).collect(),
            targets: (0..n).map(|i| if ignored(i) { -1 } else { draw(n + i, vocabulary) }).collect(),
        }
    }

    /// Targets that count.
    pub fn valid(&self) -> u64 {
        self.targets.iter().filter(|t| **t >= 0).count() as u64
    }

    /// Part `index` of `parts` even ones.
    pub fn part(&self, index: usize, parts: usize) -> Self {
        let n = self.tokens.len() / parts;
        let cut = |v: &[i32]| v[index * n..(index + 1) * n].to_vec();
        Self { tokens: cut(&self.tokens), targets: cut(&self.targets) }
    }

    /// The parts in another order.
    pub fn permuted(&self, order: &[usize]) -> Self {
        let parts: Vec<_> = order.iter().map(|&i| self.part(i, order.len())).collect();
        Self {
            tokens: parts.iter().flat_map(|p| p.tokens.clone()).collect(),
            targets: parts.iter().flat_map(|p| p.targets.clone()).collect(),
        }
    }

    /// One step.
    pub fn step<D: Device>(&self, rank: &mut Rank<D>) -> Result<StepReport, EngineError> {
        rank.step(&mut from_slices(&self.tokens, &self.targets), self.valid())
    }

    /// The loss of it, with nothing changed.
    pub fn evaluate<D: Device>(&self, rank: &mut Rank<D>) -> Result<f64, EngineError> {
        let batches = self.tokens.len() / rank.settings().micro_tokens();
        rank.evaluate(batches, &mut from_slices(&self.tokens, &self.targets), self.valid())
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

/// The bits of every weight and moment.
pub fn state_bits(rank: &Rank<Cpu>) -> Vec<u32> {
    let parts = [Part::Weight, Part::FirstMoment, Part::SecondMoment];
    params(rank)
        .flat_map(|p| parts.map(|part| rank.device().read_f32(rank.part(part, p))))
        .flatten()
        .map(f32::to_bits)
        .collect()
}

/// Replaces a parameter's elements by `f(index, element)`.
pub fn change(rank: &mut Rank<Cpu>, p: ParamId, f: impl Fn(usize, f32) -> f32) {
    let mut values = rank.device().read_f32(rank.part(Part::Weight, p));
    values.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x));
    let (device, dst) = rank.part_mut(Part::Weight, p);
    device.write(dst, bytemuck::cast_slice(&values));
}

/// Where a gradient is zero by cancellation (that of the queries of a sequence of one token, say), f32 leaves
/// rounding errors of its terms: below this share of the largest gradient of all.
pub const CANCELLED: f64 = 2e-6;

/// Size of the largest element.
pub fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
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
pub fn trace(rank: &mut Rank<Cpu>, batches: &[Batch]) -> Trace {
    let steps = batches
        .iter()
        .map(|b| b.step(rank).unwrap())
        .map(|r| [r.loss.to_bits(), r.gradient_norm.to_bits()])
        .collect();
    Trace { steps, state: state_bits(rank) }
}
