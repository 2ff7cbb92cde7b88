//! Operations on tensors: shapes and placements are checked here, once, for all devices.

mod attention;
mod linear;
mod loss;
mod norms;
mod optimizer;
mod pointwise;

pub use attention::{Attended, AttentionForward, AttentionGradients, attention, attention_backward};
pub use linear::{
    Matrix, affine, affine_gelu, affine_into, affine_swiglu, linear, linear_input_gradient,
    linear_input_gradient_into, linear_into, linear_weight_gradient,
};
pub use loss::{cross_entropy, sum_wide};
pub use norms::{NormWeights, Normed, norm, norm_input_gradient, norm_weight_gradient};
pub use optimizer::{Stepped, accumulate, adamw, clip_factor, sum_squares};
pub use pointwise::{
    add, add_embedding, bias_gradient, columns, copy_like, dropout, embedding, embedding_gradient, gelu,
    gelu_backward, rope, set_columns, swiglu, swiglu_backward,
};

use crate::device::Memory;
use crate::{Category, DType, Error, Shape, ShapeError, Tensor, TypeError};
use memwall_layout::Placements;

/// Refuses operands whose shapes do not fit.
pub(crate) fn require(fits: bool, operation: &'static str, shapes: &[Shape]) -> Result<(), ShapeError> {
    if fits {
        return Ok(());
    }
    let shapes = shapes.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
    Err(ShapeError { operation, shapes })
}

/// Refuses operands whose element types do not fit: `alike` are all f32 or all bf16, and of each pair in `exact` the
/// first, an operand's, must be the second.
fn require_types(
    operation: &'static str,
    alike: &[DType],
    exact: &[(DType, DType)],
) -> Result<(), TypeError> {
    let fits = alike.iter().all(|t| t.is_float() && *t == alike[0]) && exact.iter().all(|(t, of)| t == of);
    if fits {
        return Ok(());
    }
    let types = alike.iter().chain(exact.iter().map(|(t, _)| t));
    let types = types.map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ");
    Err(TypeError { operation, types })
}

/// A new activation of an operation.
fn activation<D: Memory>(
    device: &D,
    operation: &'static str,
    dtype: DType,
    shape: Shape,
    placements: Placements,
) -> Result<Tensor<D>, Error> {
    device.ledger().operation(operation);
    Tensor::new(device, shape, dtype, placements, Category::Activations)
}
