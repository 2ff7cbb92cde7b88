//! What a rank is told, and what it tells of a step.

use crate::{Keep, Schedule};
use memwall_tensor::{ByCategory, DType};

/// AdamW's constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled decay of the parameters that decay.
    pub weight_decay: f64,
}

/// A type of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits; sums are 32 bits all the same.
    Bf16,
}

impl Precision {
    /// Type of elements.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

/// What the ranks along `dp_shard` hold a part of, and not the whole (Rajbhandari et al., "ZeRO", 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// Nothing: every rank holds all.
    None,
    /// The optimizer's state: masters and moments.
    One,
    /// And gradients.
    Two,
    /// And weights, which are gathered unit by unit where they are used.
    Three,
}

impl Zero {
    /// All of them, in order.
    pub const ALL: [Zero; 4] = [Zero::None, Zero::One, Zero::Two, Zero::Three];
}

/// What a rank is to do: all that decides which operations a step issues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of this rank in a step.
    pub micro_batches: usize,
    /// Tokens in a sequence.
    pub sequence: usize,
    /// In what forward and backward compute. In bf16 there are f32 master weights beside.
    pub precision: Precision,
    /// In what gradients are kept, where they are not summed as integers.
    pub gradients: Precision,
    /// Whether gradients are summed as integers.
    pub deterministic: bool,
    /// What is sharded among the ranks of a sharding group.
    pub zero: Zero,
    /// Limit of the gradient norm.
    pub clip: Option<f64>,
    /// Seed of the initial values.
    pub seed: u64,
    /// What blocks keep for backward.
    pub keep: Keep,
    /// AdamW's constants.
    pub optimizer: AdamWSettings,
    /// Learning rate by step.
    pub schedule: Schedule,
    /// Bytes reserved for what of a checkpoint is not written yet when the optimizer changes the state; no more than the
    /// rank's part of the state is taken.
    pub snapshot: u64,
}

impl Settings {
    /// Tokens in a micro-batch.
    pub fn micro_tokens(&self) -> usize {
        self.micro_batch * self.sequence
    }

    /// Type of the gradients' accumulators.
    pub(crate) fn gradient_type(&self) -> DType {
        if self.deterministic { DType::I64 } else { self.gradients.dtype() }
    }
}

/// What a step has done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over the step's valid tokens.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Ledger bytes in use at the end of the step.
    pub live: ByCategory,
}

/// A part of a parameter's state, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The parameter; its master where forward and backward read a rounded copy.
    Weight,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
}

/// One micro-batch on the host, to fill: sequences one behind the other.
#[derive(Debug)]
pub struct MicroBatch<'a> {
    /// Token ids, below the vocabulary.
    pub tokens: &'a mut [i32],
    /// What comes after each token; negative where that does not count.
    pub targets: &'a mut [i32],
    /// Position of each token in its document, from 0, below the sequence's length: attention sees one document.
    /// Filled with one document a sequence.
    pub positions: &'a mut [i32],
    /// Number of each sequence's sample in the whole run: keys of dropout.
    pub samples: &'a mut [u64],
}

/// Fills micro-batch number `.0` of a step.
pub type Load<'a> = &'a mut dyn FnMut(usize, &mut MicroBatch<'_>);
