//! What happens to gradients: exact sums, the norm, clipping, AdamW.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// Host scalars of one AdamW step (Loshchilov and Hutter, algorithm 2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; 0 for parameters that do not decay.
    pub weight_decay: f64,
    /// Number of this step, from 1: corrects the moments' bias.
    pub step: u64,
}

/// Operations between backward and the next forward. A gradient is f32, bf16, or 64-bit fixed point
/// ([`crate::fixed`]).
pub trait Optimizer: Memory {
    /// Adds f32 `values` to `sums`, element by element, or stores them when `fresh`. In fixed point overflow sticks.
    fn accumulate(&self, values: Slice<'_, Self::Buf>, sums: SliceMut<'_, Self::Buf>, fresh: bool);

    /// Adds the sum of squares of a gradient to a wide sum, by canonical blocks of 1024 elements.
    fn sum_squares(&self, gradient: Slice<'_, Self::Buf>, into: SliceMut<'_, Self::Buf>);

    /// From the wide sum of squares to `out = [factor, norm]`: `factor = min(1, limit / (norm + 1e-6))`, 1
    /// without a limit. A norm that is not finite is infinity, and makes AdamW leave everything as it is.
    fn clip_factor(&self, squares: Slice<'_, Self::Buf>, limit: Option<f32>, out: SliceMut<'_, Self::Buf>);

    /// One AdamW step on a part of the parameters. `clip` is what [`Optimizer::clip_factor`] made; `rounded`, where
    /// forward and backward read the parameter in bf16, gets the new one.
    fn adamw(
        &self,
        settings: AdamW,
        clip: Slice<'_, Self::Buf>,
        gradient: Slice<'_, Self::Buf>,
        parameter: SliceMut<'_, Self::Buf>,
        first_moment: SliceMut<'_, Self::Buf>,
        second_moment: SliceMut<'_, Self::Buf>,
        rounded: Option<SliceMut<'_, Self::Buf>>,
    );
}
