//! Operations on tensors: shapes and placements are checked here, once, for all devices.

mod attention;
mod linear;
mod loss;
mod pointwise;

pub use attention::{AttentionForward, AttentionGradients, attention, attention_backward};
pub use linear::{
    linear, linear_input_gradient, linear_input_gradient_into, linear_into, linear_weight_gradient,
};
pub use loss::{cross_entropy, sum_wide};
pub use pointwise::{
    Normed, copy_like, embedding, embedding_gradient, rms_norm, rms_norm_input_gradient,
    rms_norm_weight_gradient, rope, swiglu, swiglu_backward,
};

use crate::device::Memory;
use crate::{Category, DType, Error, Shape, ShapeError, Tensor};
use memwall_layout::Placements;

/// Refuses operands whose shapes do not fit.
pub(crate) fn require(fits: bool, operation: &'static str, shapes: &[Shape]) -> Result<(), ShapeError> {
    if fits {
        return Ok(());
    }
    let shapes = shapes.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
    Err(ShapeError { operation, shapes })
}

/// A new f32 activation.
fn activation<D: Memory>(device: &D, shape: Shape, placements: Placements) -> Result<Tensor<D>, Error> {
    Tensor::new(device, shape, DType::F32, placements, Category::Activations)
}
