//! Where weight gradients go.

use crate::FlatLayout;
use memwall_layout::Placements;
use memwall_model::ParamId;
use memwall_tensor::device::Device;
use memwall_tensor::{Category, DType, Error, Tensor, View, ViewMut, ops};

/// Takes the gradient of each use of each parameter and adds it to what the step has so far.
///
/// The leaf, one micro-batch's gradient of one use, is f32. Where gradients are f32 too it is added where it is
/// computed. In bf16 it is computed by itself and rounded once; so it is in deterministic mode, and added as an
/// integer, so that the order of leaves cannot matter.
#[derive(Debug)]
pub struct GradSink<'a, D: Device> {
    device: &'a D,
    layout: &'a FlatLayout,
    gradients: &'a mut [Tensor<D>],
    /// Whether a parameter has a gradient from earlier in this step.
    written: &'a mut [bool],
}

impl<'a, D: Device> GradSink<'a, D> {
    pub(crate) fn new(
        device: &'a D,
        layout: &'a FlatLayout,
        gradients: &'a mut [Tensor<D>],
        written: &'a mut [bool],
    ) -> Self {
        Self { device, layout, gradients, written }
    }

    /// Has `compute(destination, accumulate)` compute the gradient of one use of `param`.
    ///
    /// # Errors
    /// Those of `compute`; out of memory.
    pub fn add(
        &mut self,
        param: ParamId,
        compute: impl FnOnce(ViewMut<'_, D>, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (unit, s) = self.layout.place(param);
        let placements: Placements = self.gradients[unit].placements();
        let n = s.shape.len();
        let sum = self.gradients[unit].view_mut().rows(s.offset, n);
        let seen = std::mem::replace(&mut self.written[param.0], true);
        if sum.dtype() == DType::F32 {
            compute(ViewMut { shape: s.shape, ..sum }, seen)?;
        } else {
            self.device.ledger().operation("weight gradient");
            let mut leaf = Tensor::new(self.device, s.shape, DType::F32, placements, Category::Workspace)?;
            compute(leaf.view_mut(), false)?;
            let flat = View { shape: sum.shape, ..leaf.view() };
            ops::accumulate(self.device, flat, sum, !seen)?;
        }
        Ok(())
    }
}
