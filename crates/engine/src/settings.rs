//! What a rank is told, and what it tells of a step.

use crate::unit::Sequences;
use crate::{Keep, Schedule};
use memwall_tensor::device::Memory;
use memwall_tensor::{ByCategory, Tensor};

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

/// What a rank is to do: all that decides which operations a step issues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches in a step.
    pub micro_batches: usize,
    /// Tokens in a sequence.
    pub sequence: usize,
    /// Whether gradients are summed as integers.
    pub deterministic: bool,
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
}

impl Settings {
    /// Tokens in a micro-batch.
    pub fn micro_tokens(&self) -> usize {
        self.micro_batch * self.sequence
    }

    /// The sequences of a micro-batch as units see them.
    pub(crate) fn sequences<'a, D: Memory>(
        &self,
        positions: &'a Tensor<D>,
        table: &'a Tensor<D>,
    ) -> Sequences<'a, D> {
        Sequences {
            batch: self.micro_batch,
            length: self.sequence,
            positions: positions.view(),
            table: table.view(),
        }
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

/// A part of a parameter's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The parameter.
    Weight,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
}

/// Fills the tokens and targets of one micro-batch on the host.
pub type Load<'a> = &'a mut dyn FnMut(usize, &mut [i32], &mut [i32]);
