//! The training step and the evaluation of a rank.

use crate::error::InUnit;
use crate::gather::is_tied;
use crate::rank::wide_sums;
use crate::settings::{Load, StepReport};
use crate::sink::GradSink;
use crate::unit::LossSum;
use crate::{EngineError, Keep, Rank};
use memwall_comm::Call;
use memwall_tensor::Phase;
use memwall_tensor::device::Device;
use memwall_tensor::fixed::Wide;

const SUMS: &str = "no collective has the sums";

impl<D: Device> Rank<D> {
    /// One training step over this rank's `micro_batches` micro-batches, which `load` fills. `valid` is the number of targets
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
            self.forward_backward(scale, micro + 1 == self.settings.micro_batches)?;
        }
        self.device.ledger().enter(Phase::Optimizer);
        self.reduce()?;
        let learning_rate = self.settings.schedule.at(self.step + 1);
        self.take_back();
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
            return Err(self.not_finite(report.step, report.loss));
        }
        self.step += 1;
        Ok(report)
    }

    /// Mean loss over `batches` micro-batches of this rank, with `valid` targets over all ranks; changes nothing.
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
        self.sum_over_ranks()?;
        Ok(self.read_sums().0.value())
    }

    /// Clears what a step or an evaluation adds to, and rounds masters that were written from outside.
    pub(crate) fn begin(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.device.ledger().enter(phase);
        self.round_if_stale()?;
        if phase == Phase::Forward {
            self.gradients.begin(self.weights.layout());
        }
        let sums = match self.sums.take() {
            Some(sums) => sums.placed(self.shares.owed()),
            // The collective that had them failed.
            None => wide_sums(&self.device, self.shares)?,
        };
        self.device.zero(self.sums.insert(sums).view_mut().slice);
        Ok(())
    }

    /// Forward and loss of the micro-batch that is loaded; nothing is kept.
    pub(crate) fn forward(&mut self, scale: f64) -> Result<(), EngineError> {
        let (device, stack, group) = (&self.device, &self.stack, self.groups.shard.as_ref());
        let (seq, tokens) = (self.batch.evaluation(), self.batch.tokens());
        self.weights.begin(false);
        let (x, _) = stack.forward(device, &mut self.weights, group, seq, tokens, &Keep::NOTHING)?;
        self.weights.advance(device, group)?;
        let (own, weight) = (self.weights.lease(stack.last()), stack.head_weight(&self.weights));
        let sums = self.sums.as_mut().expect(SUMS);
        let mut loss = LossSum { sum: sums.view_mut().rows(0, Wide::LEN), scale };
        let targets = self.batch.targets();
        stack.head.forward(device, &own, weight, x, targets, &mut loss).in_unit(stack.last())
    }

    /// Forward and backward of the micro-batch that is loaded, the step's `last` or not.
    pub(crate) fn forward_backward(&mut self, scale: f64, last: bool) -> Result<(), EngineError> {
        self.device.ledger().enter(Phase::Forward);
        // Split borrows: units read weights and data while the sink writes gradients.
        let (device, stack, groups) = (&self.device, &self.stack, &self.groups);
        let (weights, gradients) = (&mut self.weights, &mut self.gradients);
        let (tokens, targets, seq) = (self.batch.tokens(), self.batch.targets(), self.batch.training());
        let group = groups.shard.as_ref();
        weights.begin(true);
        let (x, mut kept) = stack.forward(device, weights, group, seq, tokens, &self.settings.keep)?;
        weights.advance(device, group)?;
        let sums = self.sums.as_mut().expect(SUMS);
        let mut loss = LossSum { sum: sums.view_mut().rows(0, Wide::LEN), scale };
        device.ledger().enter(Phase::Backward);
        device.ledger().at_unit(stack.last());
        let tied = is_tied(&self.spec);
        gradients.open(device, group, weights.layout(), stack.last())?;
        if tied {
            gradients.open(device, group, weights.layout(), 0)?;
        }
        let mut dx = {
            let (own, weight) = (weights.lease(stack.last()), stack.head_weight(weights));
            let mut sink = GradSink::new(device, weights.layout(), gradients);
            stack.head.forward_backward(device, &own, weight, x, targets, &mut loss, &mut sink)
        }
        .in_unit(stack.last())?;
        gradients.close(device, groups, weights.layout(), stack.last(), last)?;
        if tied {
            gradients.close_use(device, groups, weights.layout(), 0)?;
        }
        for (i, block) in stack.blocks.iter().enumerate().rev() {
            let (unit, kept) = (i + 1, kept.pop().expect("every block kept something"));
            device.ledger().at_unit(unit);
            weights.advance(device, group)?;
            gradients.open(device, group, weights.layout(), unit)?;
            let w = weights.lease(unit);
            let mut sink = GradSink::new(device, weights.layout(), gradients);
            dx = block.backward(device, &w, seq, kept, dx, &mut sink).in_unit(unit)?;
            gradients.close(device, groups, weights.layout(), unit, last)?;
        }
        device.ledger().at_unit(0);
        gradients.open(device, group, weights.layout(), 0)?;
        let mut sink = GradSink::new(device, weights.layout(), gradients);
        stack.embedding.backward(device, seq, tokens, dx, &mut sink).in_unit(0)?;
        gradients.close(device, groups, weights.layout(), 0, last)?;
        Ok(gradients.end_micro_batch(device, groups)?)
    }

    /// The collectives of a step's micro-batches, without the units that compute between them: in the order in which
    /// [`Rank::forward_backward`] issues them.
    pub(crate) fn collectives_of_micro_batches(&mut self) -> Result<(), EngineError> {
        let (device, groups) = (&self.device, &self.groups);
        let (weights, gradients, group) = (&mut self.weights, &mut self.gradients, groups.shard.as_ref());
        let (head, tied) = (self.stack.last(), is_tied(&self.spec));
        for micro in 0..self.settings.micro_batches {
            let last = micro + 1 == self.settings.micro_batches;
            weights.begin(true);
            (0..=head).try_for_each(|_| weights.advance(device, group))?;
            for unit in (0..=head).rev() {
                if unit != head && unit != 0 {
                    weights.advance(device, group)?;
                }
                gradients.open(device, group, weights.layout(), unit)?;
                if unit == head && tied {
                    gradients.open(device, group, weights.layout(), 0)?;
                }
                gradients.close(device, groups, weights.layout(), unit, last)?;
                if unit == head && tied {
                    gradients.close_use(device, groups, weights.layout(), 0)?;
                }
            }
            gradients.end_micro_batch(device, groups)?;
        }
        Ok(())
    }

    /// Completes the sums over the ranks: gradients, then loss and squared gradient norm.
    pub(crate) fn reduce(&mut self) -> Result<(), EngineError> {
        self.gradients.finish(&self.device, &self.groups)?;
        let squares = self.sums.as_mut().expect(SUMS).view_mut().rows(Wide::LEN, Wide::LEN);
        self.gradients.sum_squares(&self.device, &self.groups, squares)?;
        self.sum_over_ranks()
    }

    /// Sums loss and squared gradient norm over the ranks.
    pub(crate) fn sum_over_ranks(&mut self) -> Result<(), EngineError> {
        let sums = self.sums.take().expect(SUMS);
        let summed = self.groups.data.carry_out(&self.device, Call::AllReduce(sums))?;
        self.sums = Some(summed.into_buffer());
        Ok(())
    }

    fn read_sums(&self) -> (Wide, Wide) {
        let mut e = [0i64; 2 * Wide::LEN];
        let sums = self.sums.as_ref().expect(SUMS);
        self.device.read(sums.view().slice, bytemuck::cast_slice_mut(&mut e));
        (Wide::from_elements([e[0], e[1], e[2]]), Wide::from_elements([e[3], e[4], e[5]]))
    }
}
