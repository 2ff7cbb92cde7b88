//! Cross-entropy of a chunk of logits.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// The loss.
pub trait Loss: Memory {
    /// For each row of `logits` `[rows, vocabulary]`: `losses[row] = lse(logits) - logits[target]`, or 0 where
    /// the target is negative (ignored). With a `scale`, `logits` is replaced by the gradient of
    /// `scale x sum of losses`.
    fn cross_entropy(
        &self,
        logits: SliceMut<'_, Self::Buf>,
        targets: Slice<'_, Self::Buf>,
        losses: SliceMut<'_, Self::Buf>,
        scale: Option<f32>,
    );

    /// Adds `scale x sum of values` to the wide fixed-point sum `into` (see [`crate::fixed::Wide`]): an f64 sum
    /// of each canonical block of 1024 elements, then integers, so that no order can matter.
    fn sum_wide(&self, values: Slice<'_, Self::Buf>, scale: f64, into: SliceMut<'_, Self::Buf>);
}
