//! One rank: its device, its groups, its state. What it does with them is in `step`, `update` and `common`.

use crate::common::Common;
use crate::gradients::Gradients;
use crate::micro_batch::Batch;
use crate::settings::{Part, Precision, Settings};
use crate::shares::{Shares, piece};
use crate::snapshot::Lending;
use crate::stack::{Parameters, Stack};
use crate::weights::{initialize, zeroed};
use crate::{EngineError, Weights, Zero};
use memwall_comm::Groups;
use memwall_layout::Placements;
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::Device;
use memwall_tensor::fixed::{self, Wide};
use memwall_tensor::{Category, DType, Float, Phase, Shape, Slice, SliceMut, Tensor, bf16};
use std::ops::Range;

/// One rank's whole state. It is a value, and may be sent to another thread.
pub struct Rank<D: Device> {
    pub(crate) device: D,
    pub(crate) groups: Groups<D>,
    pub(crate) spec: ModelSpec,
    pub(crate) settings: Settings,
    pub(crate) shares: Shares,
    /// As forward and backward read them.
    pub(crate) weights: Weights<D>,
    /// What the optimizer changes, where `weights` are rounded copies of it.
    pub(crate) masters: Option<Vec<Tensor<D>>>,
    /// Whether masters were written since they were last rounded.
    pub(crate) stale: bool,
    pub(crate) gradients: Gradients<D>,
    pub(crate) first: Vec<Tensor<D>>,
    pub(crate) second: Vec<Tensor<D>>,
    pub(crate) batch: Batch<D>,
    /// Loss and squared gradient norm as wide sums; away while a collective has it.
    pub(crate) sums: Option<Tensor<D>>,
    pub(crate) clip: Tensor<D>,
    pub(crate) common: Option<Common<D>>,
    pub(crate) lending: Lending<D>,
    pub(crate) stack: Stack,
    pub(crate) step: u64,
}

impl<D: Device> Rank<D> {
    /// Allocates all that lives as long as the rank. Parameters are zero until they are initialized or loaded.
    ///
    /// # Errors
    /// Out of memory, ranks along an axis that nothing is cut along, or sequences longer than the positions that the model
    /// has learned.
    pub fn new(
        device: D,
        groups: Groups<D>,
        spec: ModelSpec,
        settings: Settings,
    ) -> Result<Self, EngineError> {
        // Refused rather than trained with each rank's own gradients.
        let (world, data) = (groups.mesh.world(), groups.mesh.data_ranks());
        if world != data || settings.zero == Zero::None && groups.shard.size() > 1 {
            return Err(EngineError::Mesh { mesh: groups.mesh, zero: settings.zero });
        }
        Stack::check_length(&spec.config, settings.sequence)?;
        let shares = Shares::of(&groups, settings.zero);
        let weights = Weights::shared(&device, &spec, settings.precision.dtype(), shares)?;
        let layout = weights.layout();
        let state = |name, category| {
            let own = |len| shares.own(len);
            let placed = |range: &Range<usize>, len| shares.held(range, len);
            zeroed(&device, name, &layout.units, DType::F32, category, own, placed)
        };
        let rounded = settings.precision != Precision::F32;
        Ok(Self {
            masters: rounded.then(|| state("master weights", Category::MasterWeights)).transpose()?,
            gradients: Gradients::new(&device, layout, &spec, shares, &settings)?,
            first: state("first moment", Category::OptimizerState)?,
            second: state("second moment", Category::OptimizerState)?,
            batch: Batch::new(&device, &spec.config, &settings, shares.tokens())?,
            sums: Some(wide_sums(&device, shares)?),
            clip: clip_factor(&device)?,
            common: Common::new(&device, &groups, spec.units.len())?,
            lending: Lending::new(&device, layout, shares, &settings, groups.replicate.rank() == 0)?,
            stack: Stack::new(&spec),
            stale: false,
            step: 0,
            device,
            groups,
            spec,
            settings,
            shares,
            weights,
        })
    }

    /// Gives every parameter its first value, of which this rank computes what it holds.
    pub fn initialize(&mut self) {
        let seed = self.settings.seed;
        for param in (0..self.spec.params.len()).map(ParamId) {
            let (spec, held) = (self.spec.param(param).clone(), self.held(Part::Weight, param));
            let (device, dst) = self.part_mut(Part::Weight, param);
            if !held.is_empty() {
                initialize(device, &spec, dst, seed, held.start);
            }
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The groups that the rank is in.
    pub fn groups(&self) -> &Groups<D> {
        &self.groups
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// What the rank is to do.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Steps done so far.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// Goes on as if this many steps had been done; for a state that was loaded.
    pub fn set_steps_done(&mut self, step: u64) {
        self.step = step;
    }

    /// The unit of a parameter, which of the parameter's elements this rank holds of a part of the state, and where they lie
    /// in the unit's buffer.
    fn piece(&self, part: Part, param: ParamId) -> (usize, Range<usize>, Range<usize>) {
        let layout = self.weights.layout();
        let ((unit, segment), len) = (layout.place(param), layout.flat(param).len);
        let held = match part {
            Part::Weight if segment.frozen || self.masters.is_none() => self.shares.weights(len),
            // What is frozen has no moments.
            _ if segment.frozen => 0..0,
            _ => self.shares.own(len),
        };
        let (elements, at) = piece(layout, param, &held);
        (unit, elements, at)
    }

    /// Which of a parameter's elements this rank holds of a part of the state.
    pub fn held(&self, part: Part, param: ParamId) -> Range<usize> {
        self.piece(part, param).1
    }

    /// What this rank holds of a part of a parameter's state, to read: f32, but for the weights of what is frozen in bf16.
    pub fn part(&self, part: Part, param: ParamId) -> Slice<'_, D::Buf> {
        let (_, _, at) = self.piece(part, param);
        self.tensor_of(part, param).0.view().slice.part(at.start, at.len())
    }

    /// The tensor that a part of a parameter's state lies in, and where what this rank holds of it begins.
    pub(crate) fn tensor_of(&self, part: Part, param: ParamId) -> (&Tensor<D>, usize) {
        let (unit, _, at) = self.piece(part, param);
        let masters = self.masters.as_ref().filter(|_| !self.spec.param(param).frozen);
        let flat = match (part, masters) {
            (Part::Weight, None) => self.weights.of(param),
            (Part::Weight, Some(masters)) => &masters[unit],
            (Part::FirstMoment, _) => &self.first[unit],
            (Part::SecondMoment, _) => &self.second[unit],
        };
        (flat, at.start)
    }

    /// What this rank holds of a part of a parameter's state, to write.
    pub fn part_mut(&mut self, part: Part, param: ParamId) -> (&D, SliceMut<'_, D::Buf>) {
        let (unit, _, at) = self.piece(part, param);
        let frozen = self.spec.param(param).frozen;
        let flat = match (part, self.masters.as_mut().filter(|_| !frozen)) {
            (Part::Weight, None) => self.weights.of_mut(param),
            (Part::Weight, Some(masters)) => {
                self.stale = true;
                &mut masters[unit]
            }
            (Part::FirstMoment, _) => &mut self.first[unit],
            (Part::SecondMoment, _) => &mut self.second[unit],
        };
        (&self.device, flat.view_mut().slice.part(at.start, at.len()))
    }

    /// Which part of the state this rank updates, and of how many.
    pub fn share(&self) -> (usize, usize) {
        match self.shares.zero() {
            Zero::None => (0, 1),
            _ => (self.groups.shard.rank(), self.groups.shard.size()),
        }
    }

    /// Whether all weights lie here as the optimizer updates them.
    pub fn holds_all(&self) -> bool {
        self.shares.zero() == Zero::None || self.masters.is_none() && self.shares.zero() != Zero::Three
    }

    /// The elements of a parameter that are this rank's to update, or to save where it is frozen. Over the ranks of a sharding
    /// group they are the whole parameter, once; groups of replicas hold the same.
    pub fn owned(&self, param: ParamId) -> Range<usize> {
        let layout = self.weights.layout();
        piece(layout, param, &self.shares.own(layout.flat(param).len)).0
    }

    /// The last step's gradient of a parameter, rounded to f32: of the elements that this rank's optimizer updates. Of what is
    /// frozen there is none.
    pub fn gradient(&self, param: ParamId) -> Vec<f32> {
        let layout = self.weights.layout();
        let (unit, segment) = layout.place(param);
        if segment.frozen {
            return Vec::new();
        }
        let (_, at) = piece(layout, param, &self.shares.own(layout.units[unit].len));
        let slice = self.gradients.slice(unit, at);
        match slice.dtype() {
            DType::I64 => {
                let mut sums = vec![0i64; slice.len()];
                self.device.read(slice, bytemuck::cast_slice_mut(&mut sums));
                sums.into_iter().map(fixed::to_f32).collect()
            }
            DType::BF16 => {
                let mut rounded = vec![bf16::ZERO; slice.len()];
                self.device.read(slice, bytemuck::cast_slice_mut(&mut rounded));
                rounded.into_iter().map(Float::wide).collect()
            }
            _ => self.device.read_f32(slice),
        }
    }

    /// Tells the ledger that a checkpoint is being written: what is alive now is what that phase holds.
    pub fn begin_checkpoint(&self) {
        self.device.ledger().enter(Phase::Checkpoint);
    }
}

/// Room for the wide sums of loss and squared gradient norm.
pub(crate) fn wide_sums<D: Device>(device: &D, shares: Shares) -> Result<Tensor<D>, memwall_tensor::Error> {
    device.ledger().operation("loss and gradient norm");
    let shape = Shape::vector(2 * Wide::LEN);
    Tensor::new(device, shape, DType::I64, shares.owed(), Category::Communication)
}

/// Room for the clip factor.
fn clip_factor<D: Device>(device: &D) -> Result<Tensor<D>, memwall_tensor::Error> {
    device.ledger().operation("clip factor");
    Tensor::new(device, Shape::vector(2), DType::F32, Placements::REPLICATED, Category::Workspace)
}

impl<D: Device> Parameters<D> for Rank<D> {
    fn held(&self, param: ParamId) -> Range<usize> {
        self.held(Part::Weight, param)
    }

    fn parameter_mut(&mut self, param: ParamId) -> (&D, SliceMut<'_, D::Buf>) {
        self.part_mut(Part::Weight, param)
    }
}
