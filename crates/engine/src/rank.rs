//! One rank: its device, its groups, its state, and the training step.

use crate::error::InUnit;
use crate::micro_batch::Batch;
use crate::settings::{Load, Part, Precision, Settings, StepReport};
use crate::sink::GradSink;
use crate::stack::{Parameters, Stack};
use crate::unit::LossSum;
use crate::weights::{initialize, zeroed};
use crate::{EngineError, Keep, Weights};
use memwall_comm::{Collective, Group};
use memwall_layout::Placements;
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::{AdamW, Device};
use memwall_tensor::fixed::{self, Wide};
use memwall_tensor::ops::{self, Stepped};
use memwall_tensor::{Category, DType, Float, Phase, Shape, Slice, SliceMut, Tensor, bf16};

/// One rank's whole state. It is a value, and may be sent to another thread.
pub struct Rank<D: Device> {
    device: D,
    /// All ranks that hold a part of the step's samples.
    group: Box<dyn Group<D>>,
    spec: ModelSpec,
    settings: Settings,
    /// As forward and backward read them.
    weights: Weights<D>,
    /// What the optimizer changes, where `weights` are rounded copies of it.
    masters: Option<Vec<Tensor<D>>>,
    /// Whether masters were written since they were last rounded.
    stale: bool,
    gradients: Vec<Tensor<D>>,
    first: Vec<Tensor<D>>,
    second: Vec<Tensor<D>>,
    written: Vec<bool>,
    batch: Batch<D>,
    /// Loss and squared gradient norm as wide sums; away while a collective has it.
    sums: Option<Tensor<D>>,
    clip: Tensor<D>,
    stack: Stack,
    step: u64,
}

impl<D: Device> Rank<D> {
    /// Allocates all that lives as long as the rank. Parameters are zero until they are initialized or loaded.
    ///
    /// # Errors
    /// Out of memory, a group of more than one rank, or sequences longer than the positions that the model has learned.
    pub fn new(
        device: D,
        group: Box<dyn Group<D>>,
        spec: ModelSpec,
        settings: Settings,
    ) -> Result<Self, EngineError> {
        // Refused rather than trained with each rank's own gradients.
        if group.size() != 1 {
            return Err(EngineError::Ranks { size: group.size() });
        }
        Stack::check_length(&spec.config, settings.sequence)?;
        let weights = Weights::new(&device, &spec, settings.precision.dtype())?;
        let flat = |name, dtype, category| zeroed(&device, name, weights.layout(), dtype, category);
        let rounded = settings.precision != Precision::F32;
        Ok(Self {
            masters: rounded
                .then(|| flat("master weights", DType::F32, Category::MasterWeights))
                .transpose()?,
            gradients: flat("gradients", settings.gradient_type(), Category::Gradients)?,
            first: flat("first moment", DType::F32, Category::OptimizerState)?,
            second: flat("second moment", DType::F32, Category::OptimizerState)?,
            batch: Batch::new(&device, &spec.config, &settings)?,
            sums: Some(wide_sums(&device)?),
            clip: clip_factor(&device)?,
            stack: Stack::new(&spec),
            written: vec![false; spec.params.len()],
            stale: false,
            step: 0,
            device,
            group,
            spec,
            settings,
            weights,
        })
    }

    /// Gives every parameter its first value.
    pub fn initialize(&mut self) {
        for index in 0..self.spec.params.len() {
            let seed = self.settings.seed;
            let spec = self.spec.params[index].clone();
            let (device, dst) = self.part_mut(Part::Weight, ParamId(index));
            initialize(device, &spec, dst, seed);
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
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

    /// A part of a parameter's state, to read.
    pub fn part(&self, part: Part, param: ParamId) -> Slice<'_, D::Buf> {
        let (unit, s) = self.weights.layout().place(param);
        let flat = match (part, &self.masters) {
            (Part::Weight, None) => return self.weights.lease(unit).get(param).slice,
            (Part::Weight, Some(masters)) => &masters[unit],
            (Part::FirstMoment, _) => &self.first[unit],
            (Part::SecondMoment, _) => &self.second[unit],
        };
        flat.view().slice.part(s.offset, s.shape.len())
    }

    /// A part of a parameter's state, to write.
    pub fn part_mut(&mut self, part: Part, param: ParamId) -> (&D, SliceMut<'_, D::Buf>) {
        let (unit, s) = self.weights.layout().place(param);
        let flat = match (part, &mut self.masters) {
            (Part::Weight, None) => self.weights.flat_mut(unit),
            (Part::Weight, Some(masters)) => {
                self.stale = true;
                &mut masters[unit]
            }
            (Part::FirstMoment, _) => &mut self.first[unit],
            (Part::SecondMoment, _) => &mut self.second[unit],
        };
        (&self.device, flat.view_mut().slice.part(s.offset, s.shape.len()))
    }

    /// The last step's gradient of a parameter, rounded to f32.
    pub fn gradient(&self, param: ParamId) -> Vec<f32> {
        let (unit, s) = self.weights.layout().place(param);
        let slice = self.gradients[unit].view().slice.part(s.offset, s.shape.len());
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

    /// One training step over `micro_batches` micro-batches that `load` fills. `valid` is the number of targets
    /// that are not ignored, over all ranks and micro-batches of the step.
    ///
    /// # Errors
    /// Out of memory, a failed collective, or a loss or gradient that is not finite: then parameters and moments
    /// are unchanged, except that moments and parameters may not be trusted after out of memory.
    pub fn step(&mut self, load: Load<'_>, valid: u64) -> Result<StepReport, EngineError> {
        self.begin(Phase::Forward)?;
        let scale = 1.0 / valid.max(1) as f64;
        for micro in 0..self.settings.micro_batches {
            self.batch.load(&self.device, micro, load);
            self.forward_backward(scale)?;
        }
        self.device.ledger().enter(Phase::Optimizer);
        self.reduce()?;
        let learning_rate = self.settings.schedule.at(self.step + 1);
        self.update(learning_rate)?;
        // The step's only reads: everything was issued before.
        let (loss, squares) = self.read_sums();
        let report = StepReport {
            step: self.step + 1,
            loss: loss.value(),
            gradient_norm: squares.value().sqrt(),
            learning_rate,
            live: self.device.ledger().state().live,
        };
        if !report.loss.is_finite() || !report.gradient_norm.is_finite() {
            return Err(self.not_finite(&report));
        }
        self.step += 1;
        Ok(report)
    }

    /// Mean loss over `batches` micro-batches with `valid` targets in all; changes nothing.
    ///
    /// # Errors
    /// Out of memory or a failed collective.
    pub fn evaluate(&mut self, batches: usize, load: Load<'_>, valid: u64) -> Result<f64, EngineError> {
        self.begin(Phase::Evaluation)?;
        let scale = 1.0 / valid.max(1) as f64;
        for micro in 0..batches {
            self.batch.load(&self.device, micro, load);
            self.forward(scale)?;
        }
        self.device.ledger().at_unit(None);
        self.reduce()?;
        Ok(self.read_sums().0.value())
    }

    /// Tells the ledger that a checkpoint is being written: what is alive now is what that phase holds.
    pub fn begin_checkpoint(&self) {
        self.device.ledger().enter(Phase::Checkpoint);
    }

    /// Clears what a step or an evaluation adds to.
    pub(crate) fn begin(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.device.ledger().enter(phase);
        self.written.fill(false);
        if let Some(masters) = self.masters.as_ref().filter(|_| self.stale) {
            for (unit, master) in masters.iter().enumerate() {
                self.device.cast(master.view().slice, self.weights.flat_mut(unit).view_mut().slice);
            }
            self.stale = false;
        }
        let sums = match &mut self.sums {
            Some(sums) => sums,
            // The collective that had them failed.
            none => none.insert(wide_sums(&self.device)?),
        };
        self.device.zero(sums.view_mut().slice);
        Ok(())
    }

    /// Forward and loss of the micro-batch that is loaded; nothing is kept.
    pub(crate) fn forward(&mut self, scale: f64) -> Result<(), EngineError> {
        let (device, weights, stack) = (&self.device, &self.weights, &self.stack);
        let (seq, tokens) = (self.batch.evaluation(), self.batch.tokens());
        let (x, _) = stack.forward(device, weights, seq, tokens, &Keep::NOTHING)?;
        let (own, weight) = (weights.lease(stack.last()), stack.head_weight(weights));
        let sums = self.sums.as_mut().expect("no collective is under way");
        let mut loss = LossSum { sum: sums.view_mut().rows(0, Wide::LEN), scale };
        let targets = self.batch.targets();
        stack.head.forward(device, &own, weight, x, targets, &mut loss).in_unit(stack.last())
    }

    /// Forward and backward of the micro-batch that is loaded.
    pub(crate) fn forward_backward(&mut self, scale: f64) -> Result<(), EngineError> {
        self.device.ledger().enter(Phase::Forward);
        // Split borrows: units read weights and data while the sink writes gradients.
        let (device, weights, stack) = (&self.device, &self.weights, &self.stack);
        let (tokens, targets, seq) = (self.batch.tokens(), self.batch.targets(), self.batch.training());
        let mut sink = GradSink::new(device, weights.layout(), &mut self.gradients, &mut self.written);
        let (x, mut kept) = stack.forward(device, weights, seq, tokens, &self.settings.keep)?;
        let sums = self.sums.as_mut().expect("no collective is under way");
        let mut loss = LossSum { sum: sums.view_mut().rows(0, Wide::LEN), scale };
        let (own, weight) = (weights.lease(stack.last()), stack.head_weight(weights));
        device.ledger().enter(Phase::Backward);
        device.ledger().at_unit(stack.last());
        let mut dx = stack
            .head
            .forward_backward(device, &own, weight, x, targets, &mut loss, &mut sink)
            .in_unit(stack.last())?;
        for (i, block) in stack.blocks.iter().enumerate().rev() {
            let kept = kept.pop().expect("every block kept something");
            let w = weights.lease(i + 1);
            device.ledger().at_unit(i + 1);
            dx = block.backward(device, &w, seq, kept, dx, &mut sink).in_unit(i + 1)?;
        }
        device.ledger().at_unit(0);
        stack.embedding.backward(device, seq, tokens, dx, &mut sink).in_unit(0)
    }

    /// Adds this rank's squared gradient norm to its sums and the sums over the ranks.
    pub(crate) fn reduce(&mut self) -> Result<(), EngineError> {
        let mut sums = self.sums.take().expect("no collective is under way");
        if self.written.iter().any(|w| *w) {
            for g in &self.gradients {
                ops::sum_squares(&self.device, g.view(), sums.view_mut().rows(Wide::LEN, Wide::LEN))?;
            }
        }
        let pending = self.group.start(Collective::AllReduce, sums)?;
        self.sums = Some(self.group.wait(pending)?);
        Ok(())
    }

    /// Clips and updates every parameter.
    pub(crate) fn update(&mut self, learning_rate: f64) -> Result<(), EngineError> {
        let sums = self.sums.as_ref().expect("no collective is under way");
        let squares = sums.view().rows(Wide::LEN, Wide::LEN);
        let limit = self.settings.clip.map(|c| c as f32);
        ops::clip_factor(&self.device, squares, limit, self.clip.view_mut())?;
        let o = self.settings.optimizer;
        for unit in 0..self.gradients.len() {
            for i in 0..self.weights.layout().units[unit].segments.len() {
                let s = self.weights.layout().units[unit].segments[i];
                let g = &self.gradients[unit];
                // The master changes, and its rounded copy follows.
                let (w, mut rounded) = match &mut self.masters {
                    Some(masters) => (&mut masters[unit], Some(self.weights.flat_mut(unit))),
                    None => (self.weights.flat_mut(unit), None),
                };
                let settings = AdamW {
                    learning_rate,
                    beta1: o.beta1,
                    beta2: o.beta2,
                    eps: o.eps,
                    weight_decay: if s.decay { o.weight_decay } else { 0.0 },
                    step: self.step + 1,
                };
                let n = s.shape.len();
                let stepped = Stepped {
                    parameter: w.view_mut().rows(s.offset, n),
                    first: self.first[unit].view_mut().rows(s.offset, n),
                    second: self.second[unit].view_mut().rows(s.offset, n),
                    rounded: rounded.as_mut().map(|r| r.view_mut().rows(s.offset, n)),
                };
                let gradient = g.view().rows(s.offset, n);
                ops::adamw(&self.device, settings, self.clip.view(), gradient, stepped).in_unit(unit)?;
            }
        }
        Ok(())
    }

    fn read_sums(&self) -> (Wide, Wide) {
        let mut e = [0i64; 2 * Wide::LEN];
        let sums = self.sums.as_ref().expect("no collective is under way");
        self.device.read(sums.view().slice, bytemuck::cast_slice_mut(&mut e));
        (Wide::from_elements([e[0], e[1], e[2]]), Wide::from_elements([e[3], e[4], e[5]]))
    }

    /// Names the first tensor that is not finite: weights before gradients, since the former cause the latter.
    fn not_finite(&self, report: &StepReport) -> EngineError {
        let ids = || (0..self.spec.params.len()).map(ParamId);
        let bad = |values: Vec<f32>| values.iter().any(|x| !x.is_finite());
        let weight = ids().find(|&p| bad(self.device.read_f32(self.part(Part::Weight, p))));
        // Finite gradients whose squares are beyond a wide sum: the largest is to blame.
        let size = |p| self.gradient(p).iter().fold(0f32, |m, x| m.max(x.abs()));
        let largest =
            || ids().max_by(|&a, &b| size(a).total_cmp(&size(b))).filter(|_| report.loss.is_finite());
        let gradient = || ids().find(|&p| bad(self.gradient(p))).or_else(largest);
        let name = |p: ParamId| &self.spec.param(p).name;
        EngineError::NotFinite {
            step: report.step,
            what: if report.loss.is_finite() { "gradient" } else { "loss" },
            tensor: match weight.map(|p| format!("the weight {}", name(p))) {
                Some(w) => w,
                None => gradient()
                    .map_or_else(|| "the loss itself".into(), |p| format!("the gradient of {}", name(p))),
            },
        }
    }
}

/// Room for the wide sums of loss and squared gradient norm.
fn wide_sums<D: Device>(device: &D) -> Result<Tensor<D>, memwall_tensor::Error> {
    device.ledger().operation("loss and gradient norm");
    let shape = Shape::vector(2 * Wide::LEN);
    Tensor::new(device, shape, DType::I64, Placements::REPLICATED, Category::Communication)
}

/// Room for the clip factor.
fn clip_factor<D: Device>(device: &D) -> Result<Tensor<D>, memwall_tensor::Error> {
    device.ledger().operation("clip factor");
    Tensor::new(device, Shape::vector(2), DType::F32, Placements::REPLICATED, Category::Workspace)
}

impl<D: Device> Parameters<D> for Rank<D> {
    fn parameter_mut(&mut self, param: ParamId) -> (&D, SliceMut<'_, D::Buf>) {
        self.part_mut(Part::Weight, param)
    }
}
