//! A model's weights on a device, and what a unit sees of them.

use crate::{EngineError, FlatLayout};
use memwall_layout::Placements;
use memwall_model::{Init, ModelSpec, ParamId, ParamSpec};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Shape, SliceMut, Tensor, View, math};

/// The flat weights of every unit.
#[derive(Debug)]
pub struct Weights<D: Memory> {
    layout: FlatLayout,
    flat: Vec<Tensor<D>>,
}

/// The whole weights of one unit, for as long as it computes.
#[derive(Debug)]
pub struct Lease<'a, D: Memory> {
    layout: &'a FlatLayout,
    unit: usize,
    flat: View<'a, D>,
}

impl<D: Device> Weights<D> {
    /// Allocates and zeroes the weights of `spec`, in f32 or bf16.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &D, spec: &ModelSpec, dtype: DType) -> Result<Self, EngineError> {
        let layout = FlatLayout::new(spec);
        let flat = zeroed(device, "weights", &layout, dtype, Category::Weights)?;
        Ok(Self { layout, flat })
    }

    /// What a unit sees.
    pub fn lease(&self, unit: usize) -> Lease<'_, D> {
        Lease { layout: &self.layout, unit, flat: self.flat[unit].view() }
    }

    /// Where parameters lie.
    pub fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    /// The elements of one parameter, to write.
    pub fn parameter_mut(&mut self, param: ParamId) -> SliceMut<'_, D::Buf> {
        let (unit, s) = self.layout.place(param);
        self.flat[unit].view_mut().slice.part(s.offset, s.shape.len())
    }

    pub(crate) fn flat_mut(&mut self, unit: usize) -> &mut Tensor<D> {
        &mut self.flat[unit]
    }
}

impl<'a, D: Memory> Lease<'a, D> {
    /// One parameter of the unit.
    ///
    /// # Panics
    /// When the parameter is another unit's: a fault of the calling program.
    pub fn get(&self, param: ParamId) -> View<'a, D> {
        let (unit, s) = self.layout.place(param);
        assert_eq!(unit, self.unit, "the lease is of another unit");
        View {
            slice: self.flat.slice.part(s.offset, s.shape.len()),
            shape: s.shape,
            placements: self.flat.placements,
        }
    }
}

/// Gives a parameter's f32 elements their first value: a function of seed, name and index alone.
pub(crate) fn initialize<D: Device>(device: &D, p: &ParamSpec, dst: SliceMut<'_, D::Buf>, seed: u64) {
    match p.init {
        Init::Ones => device.fill(dst, 1.0),
        Init::Zeros => device.fill(dst, 0.0),
        Init::Normal(std) => device.fill_normal(dst, math::stream_key(seed, &p.name), 0, std),
    }
}

/// A zeroed flat buffer for each unit, which the ledger knows as `name`.
pub(crate) fn zeroed<D: Memory>(
    device: &D,
    name: &'static str,
    layout: &FlatLayout,
    dtype: DType,
    category: Category,
) -> Result<Vec<Tensor<D>>, EngineError> {
    let ledger = device.ledger();
    let flat = layout
        .units
        .iter()
        .enumerate()
        .map(|(unit, u)| {
            ledger.at_unit(unit);
            ledger.operation(name);
            let mut t = Tensor::new(device, Shape::vector(u.len), dtype, Placements::REPLICATED, category)?;
            device.zero(t.view_mut().slice);
            Ok(t)
        })
        .collect();
    ledger.at_unit(None);
    flat
}
