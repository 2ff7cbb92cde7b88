//! A model's weights on a device, and what a unit sees of them.

use crate::gather::Gather;
use crate::shares::Shares;
use crate::{EngineError, FlatLayout, FlatUnit, Zero};
use memwall_comm::Group;
use memwall_layout::Placements;
use memwall_model::{Init, ModelSpec, ParamId, ParamSpec};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Shape, SliceMut, Tensor, View, math};
use std::ops::Range;

/// The flat weights of every unit: whole, or this rank's part of them and room to gather two units at a time.
#[derive(Debug)]
pub struct Weights<D: Memory> {
    layout: FlatLayout,
    /// Of each unit the trained ones, then of each unit the frozen ones, where it has such. Away while others may be reading
    /// it.
    flat: Vec<Option<Tensor<D>>>,
    gather: Option<Gather<D>>,
}

/// The whole weights of one unit, for as long as it computes.
#[derive(Debug)]
pub struct Lease<'a, D: Memory> {
    layout: &'a FlatLayout,
    unit: usize,
    /// Trained and frozen parameters.
    flat: [Option<View<'a, D>>; 2],
}

const HERE: &str = "weights that are not being gathered are here";

impl<D: Device> Weights<D> {
    /// Allocates and zeroes the weights of `spec`, in f32 or bf16, for a device by itself.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &D, spec: &ModelSpec, dtype: DType) -> Result<Self, EngineError> {
        let layout = FlatLayout::new(spec, 1);
        let flat = allocate(device, &layout, dtype, |len| 0..len, |_, _| Placements::REPLICATED)?;
        Ok(Self { layout, flat, gather: None })
    }

    /// The same for a rank that has a share in them.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn shared(
        device: &D,
        spec: &ModelSpec,
        dtype: DType,
        shares: Shares,
    ) -> Result<Self, EngineError> {
        let layout = FlatLayout::new(spec, shares.parts());
        let held = |len| shares.weights(len);
        let placed = |range: &Range<usize>, len| shares.held(range, len);
        let flat = allocate(device, &layout, dtype, held, placed)?;
        let gather =
            (shares.zero() == Zero::Three).then(|| Gather::new(device, spec, &layout, dtype)).transpose()?;
        Ok(Self { layout, flat, gather })
    }

    /// A pass over the units begins: forward, and when `training` backward. What was gathered before is forgotten.
    pub(crate) fn begin(&mut self, training: bool) {
        if let Some(gather) = &mut self.gather {
            gather.begin(training);
        }
    }

    /// The next unit of the pass begins: its weights become whole, and those of the unit after it are sent for.
    ///
    /// # Errors
    /// A failed collective.
    pub(crate) fn advance(&mut self, device: &D, group: &dyn Group<D>) -> Result<(), EngineError> {
        match &mut self.gather {
            Some(gather) => Ok(gather.advance(device, group, &self.layout, &mut self.flat)?),
            None => Ok(()),
        }
    }

    /// What a unit sees.
    ///
    /// # Panics
    /// When the unit's weights are elsewhere, and it is not its turn.
    pub fn lease(&self, unit: usize) -> Lease<'_, D> {
        let whole = |id: usize| match &self.gather {
            Some(gather) => gather.whole(id),
            None => self.flat[id].as_ref(),
        };
        let flat = [unit, self.layout.units.len() + unit].map(|id| whole(id).map(Tensor::view));
        Lease { layout: &self.layout, unit, flat }
    }

    /// Where parameters lie.
    pub fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    /// The elements of one parameter, to write.
    pub fn parameter_mut(&mut self, param: ParamId) -> SliceMut<'_, D::Buf> {
        let (_, s) = self.layout.place(param);
        self.of_mut(param).view_mut().slice.part(s.offset, s.shape.len())
    }

    /// Number of the buffer that a parameter lies in.
    fn id(&self, param: ParamId) -> usize {
        let (unit, s) = self.layout.place(param);
        if s.frozen { self.layout.units.len() + unit } else { unit }
    }

    /// What lies here between uses of the buffer of a parameter.
    pub(crate) fn of(&self, param: ParamId) -> &Tensor<D> {
        self.flat[self.id(param)].as_ref().expect(HERE)
    }

    /// The same, to write.
    pub(crate) fn of_mut(&mut self, param: ParamId) -> &mut Tensor<D> {
        let id = self.id(param);
        self.flat[id].as_mut().expect(HERE)
    }

    /// All that lies here of a unit's weights between uses.
    pub(crate) fn all_of(&self, unit: usize) -> impl Iterator<Item = &Tensor<D>> {
        [unit, self.layout.units.len() + unit].into_iter().filter_map(|id| self.flat[id].as_ref())
    }

    /// What of a unit's trained weights lies here between uses.
    pub(crate) fn flat_mut(&mut self, unit: usize) -> &mut Tensor<D> {
        self.flat[unit].as_mut().expect(HERE)
    }

    /// The same, for a collective that gives it back to [`Weights::restore`].
    pub(crate) fn take(&mut self, unit: usize) -> Tensor<D> {
        self.flat[unit].take().expect(HERE)
    }

    /// Puts back what was taken.
    pub(crate) fn restore(&mut self, unit: usize, flat: Tensor<D>) {
        self.flat[unit] = Some(flat);
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
        let flat = self.flat[usize::from(s.frozen)].expect("a unit's weights are gathered before its turn");
        View { slice: flat.slice.part(s.offset, s.shape.len()), shape: s.shape, placements: flat.placements }
    }
}

/// Gives f32 elements of a parameter, from number `first` on, their first value: a function of seed, name and number alone.
pub(crate) fn initialize<D: Device>(
    device: &D,
    p: &ParamSpec,
    dst: SliceMut<'_, D::Buf>,
    seed: u64,
    first: usize,
) {
    if dst.dtype() == DType::BF16 {
        return initialize_rounded(device, p, dst, seed, first);
    }
    match p.init {
        Init::Ones => device.fill(dst, 1.0),
        Init::Zeros => device.fill(dst, 0.0),
        Init::Normal(std) => device.fill_normal(dst, math::stream_key(seed, &p.name), first as u64, std),
    }
}

/// The same, rounded to bf16: of what is frozen there are no masters.
fn initialize_rounded<D: Device>(
    device: &D,
    p: &ParamSpec,
    mut dst: SliceMut<'_, D::Buf>,
    seed: u64,
    first: usize,
) {
    const PIECE: usize = 1 << 14;
    let key = math::stream_key(seed, &p.name);
    let value = |i: usize| match p.init {
        Init::Ones => 1.0,
        Init::Zeros => 0.0,
        Init::Normal(std) => (std * math::random_normal(key, (first + i) as u64)) as f32,
    };
    for start in (0..dst.len()).step_by(PIECE) {
        let n = PIECE.min(dst.len() - start);
        let values: Vec<f32> = (start..start + n).map(value).collect();
        device.write_floats(dst.reborrow().part(start, n), &values);
    }
}

/// The buffers of all weights, zeroed.
fn allocate<D: Memory>(
    device: &D,
    layout: &FlatLayout,
    dtype: DType,
    held: impl Fn(usize) -> Range<usize>,
    placed: impl Fn(&Range<usize>, usize) -> Placements,
) -> Result<Vec<Option<Tensor<D>>>, EngineError> {
    let trained = zeroed(device, "weights", &layout.units, dtype, Category::Weights, &held, &placed)?;
    let mut flat: Vec<Option<Tensor<D>>> = trained.into_iter().map(Some).collect();
    for (unit, frozen) in layout.frozen.iter().enumerate() {
        let some = (frozen.len > 0).then(|| {
            device.ledger().at_unit(unit);
            zeroed_one(device, "frozen weights", frozen, dtype, Category::Weights, &held, &placed)
        });
        flat.push(some.transpose()?);
    }
    device.ledger().at_unit(None);
    Ok(flat)
}

/// For each unit a zeroed buffer, which the ledger knows as `name`, of what is `held` of its elements, `placed` accordingly.
pub(crate) fn zeroed<D: Memory>(
    device: &D,
    name: &'static str,
    units: &[FlatUnit],
    dtype: DType,
    category: Category,
    held: impl Fn(usize) -> Range<usize>,
    placed: impl Fn(&Range<usize>, usize) -> Placements,
) -> Result<Vec<Tensor<D>>, EngineError> {
    let ledger = device.ledger();
    let flat = units
        .iter()
        .enumerate()
        .map(|(unit, u)| {
            ledger.at_unit(unit);
            zeroed_one(device, name, u, dtype, category, &held, &placed)
        })
        .collect();
    ledger.at_unit(None);
    flat
}

fn zeroed_one<D: Memory>(
    device: &D,
    name: &'static str,
    flat: &FlatUnit,
    dtype: DType,
    category: Category,
    held: &impl Fn(usize) -> Range<usize>,
    placed: &impl Fn(&Range<usize>, usize) -> Placements,
) -> Result<Tensor<D>, EngineError> {
    device.ledger().operation(name);
    let range = held(flat.len);
    let shape = Shape::vector(range.len());
    // Checkpoints are written from it.
    let mut t = Tensor::lendable(device, shape, dtype, placed(&range, flat.len), category)?;
    device.zero(t.view_mut().slice);
    Ok(t)
}
