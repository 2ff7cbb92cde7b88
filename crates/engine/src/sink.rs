//! Where weight gradients go.

use crate::FlatLayout;
use crate::gradients::Gradients;
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
    gradients: &'a mut Gradients<D>,
}

impl<'a, D: Device> GradSink<'a, D> {
    pub(crate) fn new(device: &'a D, layout: &'a FlatLayout, gradients: &'a mut Gradients<D>) -> Self {
        Self { device, layout, gradients }
    }

    /// Whether `param` is trained: of what is frozen no gradient is asked for.
    pub fn wants(&self, param: ParamId) -> bool {
        !self.layout.place(param).1.frozen
    }

    /// Has `compute(destination, accumulate)` compute the gradient of one use of `param`, where that is trained.
    ///
    /// # Errors
    /// Those of `compute`; out of memory.
    pub fn add(
        &mut self,
        param: ParamId,
        compute: impl FnOnce(ViewMut<'_, D>, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.wants(param) {
            return Ok(());
        }
        let shape = self.layout.place(param).1.shape;
        let (sum, seen) = self.gradients.entry(self.layout, param);
        if sum.dtype() == DType::F32 {
            return compute(ViewMut { shape, ..sum }, seen);
        }
        self.device.ledger().operation("weight gradient");
        let mut leaf = Tensor::new(self.device, shape, DType::F32, sum.placements, Category::Workspace)?;
        compute(leaf.view_mut(), false)?;
        let flat = View { shape: sum.shape, ..leaf.view() };
        ops::accumulate(self.device, flat, sum, !seen)
    }
}
