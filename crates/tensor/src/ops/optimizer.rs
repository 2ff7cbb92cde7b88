//! What happens to gradients between backward and the next forward.

use super::{require, require_types};
use crate::device::{AdamW, Optimizer};
use crate::fixed::Wide;
use crate::{DType, Error, Shape, View, ViewMut};
use memwall_layout::rules;

/// Adds f32 `values` to `sums`, or stores them when `fresh`; see [`Optimizer::accumulate`].
///
/// # Errors
/// Shapes, types or placements that do not fit.
pub fn accumulate<D: Optimizer>(
    device: &D,
    values: View<'_, D>,
    sums: ViewMut<'_, D>,
    fresh: bool,
) -> Result<(), Error> {
    rules::add("accumulate", [("sums", &sums.placements), ("values", &values.placements)])?;
    require(values.shape == sums.shape, "accumulate", &[values.shape, sums.shape])?;
    require_types("accumulate", &[], &[(values.dtype(), DType::F32)])?;
    device.accumulate(values.slice, sums.slice, fresh);
    Ok(())
}

/// Adds the sum of squares of a flat gradient to the wide sum `into`.
///
/// # Errors
/// Shapes, types or placements that do not fit: squares of sums that are owed are not those of the whole.
pub fn sum_squares<D: Optimizer>(
    device: &D,
    gradient: View<'_, D>,
    into: ViewMut<'_, D>,
) -> Result<(), Error> {
    let placements = rules::sum("sum_squares", &gradient.placements)?;
    rules::accumulate("sum_squares", ("into", &into.placements), &placements)?;
    require(into.shape == Shape::vector(Wide::LEN), "sum_squares", &[gradient.shape, into.shape])?;
    require_types("sum_squares", &[], &[(into.dtype(), DType::I64)])?;
    device.sum_squares(gradient.slice, into.slice);
    Ok(())
}

/// The clip factor and the norm, `[2]`, of a wide sum of squares; see [`Optimizer::clip_factor`].
///
/// # Errors
/// Shapes, types or placements that do not fit: every rank computes it for itself, of the whole sum.
pub fn clip_factor<D: Optimizer>(
    device: &D,
    squares: View<'_, D>,
    limit: Option<f32>,
    out: ViewMut<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "clip_factor";
    rules::replicated(NAME, [("squares", &squares.placements), ("out", &out.placements)])?;
    let fits = squares.shape == Shape::vector(Wide::LEN) && out.shape == Shape::vector(2);
    require(fits, NAME, &[squares.shape, out.shape])?;
    require_types(NAME, &[], &[(squares.dtype(), DType::I64), (out.dtype(), DType::F32)])?;
    device.clip_factor(squares.slice, limit, out.slice);
    Ok(())
}

/// What a step of the optimizer changes: vectors of one length, placed alike.
#[derive(Debug)]
pub struct Stepped<'a, D: Optimizer> {
    /// The parameter, f32.
    pub parameter: ViewMut<'a, D>,
    /// The first moment, f32.
    pub first: ViewMut<'a, D>,
    /// The second moment, f32.
    pub second: ViewMut<'a, D>,
    /// The parameter rounded to bf16, where forward and backward read that.
    pub rounded: Option<ViewMut<'a, D>>,
}

/// One step of AdamW by a gradient; see [`Optimizer::adamw`].
///
/// # Errors
/// Shapes, types or placements that do not fit: the gradient's placement must be the parameter's.
pub fn adamw<D: Optimizer>(
    device: &D,
    settings: AdamW,
    clip: View<'_, D>,
    gradient: View<'_, D>,
    Stepped { parameter, first, second, rounded }: Stepped<'_, D>,
) -> Result<(), Error> {
    const NAME: &str = "optimizer";
    rules::replicated(NAME, [("clip", &clip.placements)])?;
    rules::optimizer([
        ("parameter", &parameter.placements),
        ("gradient", &gradient.placements),
        ("first moment", &first.placements),
        ("second moment", &second.placements),
    ])?;
    if let Some(rounded) = &rounded {
        rules::optimizer([("parameter", &parameter.placements), ("rounded", &rounded.placements)])?;
    }
    let shapes = [
        parameter.shape,
        gradient.shape,
        first.shape,
        second.shape,
        rounded.as_ref().map_or(parameter.shape, |r| r.shape),
    ];
    require(clip.shape == Shape::vector(2) && shapes.iter().all(|s| *s == shapes[0]), NAME, &shapes)?;
    let exact = [clip.dtype(), parameter.dtype(), first.dtype(), second.dtype()].map(|t| (t, DType::F32));
    require_types(NAME, &[], &exact)?;
    let rounded_type = rounded.as_ref().map_or(DType::BF16, ViewMut::dtype);
    require_types(NAME, &[], &[(rounded_type, DType::BF16)])?;
    let rounded = rounded.map(|r| r.slice);
    device.adamw(settings, clip.slice, gradient.slice, parameter.slice, first.slice, second.slice, rounded);
    Ok(())
}
