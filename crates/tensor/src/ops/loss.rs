//! The loss of a chunk of logits.

use super::{require, require_types};
use crate::device::Loss;
use crate::fixed::Wide;
use crate::{DType, Error, Shape, View, ViewMut};
use memwall_layout::rules;

/// Cross-entropy of each row of `logits [tokens, vocabulary]`; see [`Loss::cross_entropy`].
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn cross_entropy<D: Loss>(
    device: &D,
    logits: ViewMut<'_, D>,
    targets: View<'_, D>,
    losses: ViewMut<'_, D>,
    scale: Option<f32>,
) -> Result<(), Error> {
    const NAME: &str = "cross_entropy";
    rules::cross_entropy(&logits.placements, &targets.placements, &losses.placements)?;
    let rows = Shape::vector(logits.shape.rows());
    let fits = targets.shape == rows && losses.shape == rows && logits.shape.cols() > 0;
    require(fits, NAME, &[logits.shape, targets.shape, losses.shape])?;
    let exact = [(logits.dtype(), DType::F32), (targets.dtype(), DType::I32), (losses.dtype(), DType::F32)];
    require_types(NAME, &[], &exact)?;
    device.cross_entropy(logits.slice, targets.slice, losses.slice, scale);
    Ok(())
}

/// Adds `scale x sum of values` to the wide sum `into`.
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn sum_wide<D: Loss>(
    device: &D,
    values: View<'_, D>,
    scale: f64,
    into: ViewMut<'_, D>,
) -> Result<(), Error> {
    let placements = rules::sum("sum_wide", &values.placements)?;
    rules::accumulate("sum_wide", ("into", &into.placements), &placements)?;
    require(into.shape == Shape::vector(Wide::LEN), "sum_wide", &[values.shape, into.shape])?;
    require_types("sum_wide", &[], &[(values.dtype(), DType::F32), (into.dtype(), DType::I64)])?;
    device.sum_wide(values.slice, scale, into.slice);
    Ok(())
}
