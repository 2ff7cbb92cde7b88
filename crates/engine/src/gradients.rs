//! Gradients on their way: from the micro-batch that computes them to the part that this rank's optimizer reads.
//!
//! Where a rank accumulates all gradients, each unit's are summed over the ranks once, as soon as its last micro-batch is
//! through. Where it accumulates a part, each micro-batch's are computed into a work buffer, and the sum over the
//! ranks goes to their parts while the next unit computes into another.

use crate::gather::is_tied;
use crate::shares::{Shares, share_of_blocks};
use crate::weights::zeroed;
use crate::{EngineError, FlatLayout, Settings, Zero};
use memwall_comm::{Call, CommError, Group, Groups, Pending};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, Shape, Slice, Tensor, ViewMut, ops};
use std::ops::Range;

/// Work buffers: of those of blocks one is computed into while the other is on its way; embedding and head share the third, since
/// they are large and blocks lie between them.
const BUFFERS: usize = 3;

/// The work buffer of a unit. A tied head's own gradients are few: they take a block's.
fn buffer(unit: usize, last: usize, tied: bool) -> usize {
    if unit == 0 || unit == last && !tied { 2 } else { unit % 2 }
}

/// A buffer for one unit's gradients of one micro-batch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are two, which are moved whole")]
enum Work<D: Memory> {
    Idle(Tensor<D>),
    /// Being computed into.
    Open(usize, Tensor<D>),
    /// Being summed over the ranks into this unit's part.
    Flying(usize, Pending<D>),
    /// A collective that failed has it.
    Lost,
}

/// All gradients of a rank.
#[derive(Debug)]
pub(crate) struct Gradients<D: Memory> {
    shares: Shares,
    /// What is accumulated of each unit; away while a collective has it.
    sums: Vec<Option<Tensor<D>>>,
    /// Work buffers, where a rank accumulates a part.
    work: Vec<Work<D>>,
    tied: bool,
    /// Whether a parameter has a gradient: in this step, or in an open work buffer from this micro-batch.
    written: Vec<bool>,
    /// Whether a unit's part has one from earlier in this step.
    begun: Vec<bool>,
    /// Sums over the ranks under way, of whole accumulators.
    flying: Vec<(usize, Pending<D>)>,
}

const HERE: &str = "gradients that are not being summed are here";

impl<D: Device> Gradients<D> {
    /// Allocates them.
    pub(crate) fn new(
        device: &D,
        layout: &FlatLayout,
        spec: &ModelSpec,
        shares: Shares,
        settings: &Settings,
    ) -> Result<Self, EngineError> {
        let (params, tied) = (spec.params.len(), is_tied(spec));
        let dtype = settings.gradient_type();
        let held = |len| shares.gradients(len);
        let sums = zeroed(device, "gradients", &layout.units, dtype, Category::Gradients, held, |_, _| {
            shares.owed()
        })?;
        let mut work = Vec::new();
        if shares.zero() >= Zero::Two {
            let last = layout.units.len() - 1;
            for number in 0..BUFFERS {
                let own = (0..=last).filter(|unit| buffer(*unit, last, tied) == number);
                let largest = own.map(|unit| layout.units[unit].len).max().unwrap_or(0);
                device.ledger().operation("gradients of a micro-batch");
                let shape = Shape::vector(largest);
                work.push(Work::Idle(Tensor::new(
                    device,
                    shape,
                    dtype,
                    shares.owed(),
                    Category::Communication,
                )?));
            }
        }
        Ok(Self {
            shares,
            work,
            tied,
            written: vec![false; params],
            begun: vec![false; sums.len()],
            flying: Vec::new(),
            sums: sums.into_iter().map(Some).collect(),
        })
    }

    /// A step begins: what is there counts no more.
    pub(crate) fn begin(&mut self, layout: &FlatLayout) {
        self.written.fill(false);
        self.begun.fill(false);
        if self.work.is_empty() {
            for (sum, unit) in self.sums.iter_mut().zip(&layout.units) {
                let shape = Shape::vector(unit.len);
                *sum = sum.take().map(|sum| sum.window(0, shape).placed(self.shares.owed()));
            }
        }
    }

    /// Opens a work buffer for a unit whose gradients are computed next, where there are work buffers.
    pub(crate) fn open(
        &mut self,
        device: &D,
        group: &dyn Group<D>,
        layout: &FlatLayout,
        unit: usize,
    ) -> Result<(), CommError> {
        if self.work.is_empty() {
            return Ok(());
        }
        let at = buffer(unit, layout.units.len() - 1, self.tied);
        self.land(device, group, at)?;
        let Work::Idle(buffer) = std::mem::replace(&mut self.work[at], Work::Lost) else {
            panic!("a work buffer is free before another unit computes into it")
        };
        let buffer = buffer.window(0, Shape::vector(layout.units[unit].len)).placed(self.shares.owed());
        self.work[at] = Work::Open(unit, buffer);
        layout.units[unit].segments.iter().for_each(|s| self.written[s.param.0] = false);
        Ok(())
    }

    /// Waits for what is under way in a work buffer.
    fn land(&mut self, device: &D, group: &dyn Group<D>, at: usize) -> Result<(), CommError> {
        match std::mem::replace(&mut self.work[at], Work::Lost) {
            Work::Flying(unit, pending) => {
                let (buffer, sum) = group.wait(device, pending)?.into_whole_and_part();
                self.sums[unit] = Some(sum);
                self.work[at] = Work::Idle(buffer);
            }
            other => self.work[at] = other,
        }
        Ok(())
    }

    /// A unit's gradients of this micro-batch, the step's `last` or not, are complete: the ranks begin to sum them, and complete
    /// the sums that were under way while it computed.
    pub(crate) fn close(
        &mut self,
        device: &D,
        groups: &Groups<D>,
        layout: &FlatLayout,
        unit: usize,
        last: bool,
    ) -> Result<(), CommError> {
        if self.work.is_empty() {
            return if last { self.sum_whole(device, groups, unit) } else { Ok(()) };
        }
        let flying = |at: &usize| matches!(self.work[*at], Work::Flying(..));
        let before: Vec<usize> = (0..self.work.len()).filter(flying).collect();
        self.send(device, groups, layout, unit)?;
        before.into_iter().try_for_each(|at| self.land(device, groups.shard.as_ref(), at))
    }

    /// The ranks begin to sum what is in a unit's work buffer.
    fn send(
        &mut self,
        device: &D,
        groups: &Groups<D>,
        layout: &FlatLayout,
        unit: usize,
    ) -> Result<(), CommError> {
        let open = |work: &Work<D>| matches!(work, Work::Open(u, _) if *u == unit);
        let at = self.work.iter().position(open).expect("a unit's work buffer was opened");
        // The unit's part is away where its other use, at a tied head, is still under way.
        let before = |work: &Work<D>| matches!(work, Work::Flying(u, _) if *u == unit);
        if let Some(before) = self.work.iter().position(before) {
            self.land(device, groups.shard.as_ref(), before)?;
        }
        let Work::Open(_, mut whole) = std::mem::replace(&mut self.work[at], Work::Lost) else {
            unreachable!()
        };
        // What nothing was computed into holds another unit's.
        let mut end = 0;
        for s in layout.units[unit].segments.iter().filter(|s| self.written[s.param.0]) {
            device.zero(whole.view_mut().rows(end, s.offset - end).slice);
            end = s.range().end;
        }
        device.zero(whole.view_mut().rows(end, layout.units[unit].len - end).slice);
        let part = Some(self.sums[unit].take().expect(HERE));
        let accumulate = std::mem::replace(&mut self.begun[unit], true);
        let call = Call::ReduceScatter { whole, part, accumulate };
        self.work[at] = Work::Flying(unit, groups.shard.start(device, call)?);
        Ok(())
    }

    /// Begins to sum a unit's whole accumulator, and waits for the sums begun before this unit computed.
    fn sum_whole(&mut self, device: &D, groups: &Groups<D>, unit: usize) -> Result<(), CommError> {
        let before = std::mem::take(&mut self.flying);
        let sharded = self.shares.zero() != Zero::None;
        let group = if sharded { &groups.shard } else { &groups.replicate };
        if group.size() > 1 {
            let whole = self.sums[unit].take().expect(HERE);
            let call = match sharded {
                true => Call::ReduceScatter { whole, part: None, accumulate: false },
                false => Call::AllReduce(whole),
            };
            self.flying.push((unit, group.start(device, call)?));
        }
        self.settle(device, group.as_ref(), before)
    }

    fn settle(
        &mut self,
        device: &D,
        group: &dyn Group<D>,
        flying: Vec<(usize, Pending<D>)>,
    ) -> Result<(), CommError> {
        for (unit, pending) in flying {
            self.sums[unit] = Some(group.wait(device, pending)?.into_buffer());
        }
        Ok(())
    }

    /// The gradients of one of several uses of a unit's parameters are complete, beside those of the unit that uses them.
    pub(crate) fn close_use(
        &mut self,
        device: &D,
        groups: &Groups<D>,
        layout: &FlatLayout,
        unit: usize,
    ) -> Result<(), CommError> {
        if self.work.is_empty() { Ok(()) } else { self.send(device, groups, layout, unit) }
    }

    /// A micro-batch is through: waits for the sums of its last units, which would otherwise be under way for all of the next
    /// one's forward.
    pub(crate) fn end_micro_batch(&mut self, device: &D, groups: &Groups<D>) -> Result<(), CommError> {
        (0..self.work.len()).try_for_each(|at| self.land(device, groups.shard.as_ref(), at))
    }

    /// Waits for all sums of the step, and adds the replicas'. After this each unit's gradients are what this rank's
    /// optimizer reads.
    pub(crate) fn finish(&mut self, device: &D, groups: &Groups<D>) -> Result<(), CommError> {
        let flying = std::mem::take(&mut self.flying);
        if self.shares.zero() == Zero::None {
            return self.settle(device, groups.replicate.as_ref(), flying);
        }
        self.settle(device, groups.shard.as_ref(), flying)?;
        if groups.replicate.size() > 1 {
            for unit in 0..self.sums.len() {
                let sum = self.sums[unit].take().expect(HERE);
                let before = std::mem::take(&mut self.flying);
                self.flying.push((unit, groups.replicate.start(device, Call::AllReduce(sum))?));
                self.settle(device, groups.replicate.as_ref(), before)?;
            }
            let flying = std::mem::take(&mut self.flying);
            self.settle(device, groups.replicate.as_ref(), flying)?;
        }
        Ok(())
    }

    /// Adds this rank's share of the squares to a wide sum.
    pub(crate) fn sum_squares(
        &self,
        device: &D,
        groups: &Groups<D>,
        mut into: ViewMut<'_, D>,
    ) -> Result<(), EngineError> {
        // What replicas hold alike, they share the work on.
        let replicas = if self.shares.zero() == Zero::None { &groups.data } else { &groups.replicate };
        for unit in 0..self.sums.len() {
            let sum = self.sum(unit).view();
            let part = share_of_blocks(sum.shape.len(), replicas.rank(), replicas.size());
            let mut part = sum.rows(part.start, part.len());
            part.placements = self.shares.shared_work(part.placements);
            ops::sum_squares(device, part, into.reborrow())?;
        }
        Ok(())
    }

    /// What this rank's optimizer reads of a unit's gradients.
    pub(crate) fn sum(&self, unit: usize) -> &Tensor<D> {
        self.sums[unit].as_ref().expect(HERE)
    }

    /// Elements of a unit's accumulator, as a reader outside of a step sees them.
    pub(crate) fn slice(&self, unit: usize, part: Range<usize>) -> Slice<'_, D::Buf> {
        self.sum(unit).view().slice.part(part.start, part.len())
    }

    /// Where the gradient of a use of `param` goes, and whether there is one to add to.
    pub(crate) fn entry(&mut self, layout: &FlatLayout, param: ParamId) -> (ViewMut<'_, D>, bool) {
        let (unit, s) = layout.place(param);
        let seen = std::mem::replace(&mut self.written[param.0], true);
        let accumulates = self.work.is_empty();
        let open = self.work.iter_mut().find_map(|work| match work {
            Work::Open(u, buffer) if *u == unit => Some(buffer),
            _ => None,
        });
        let buffer = match open {
            Some(buffer) => buffer,
            None => {
                assert!(accumulates, "a work buffer is opened before a unit computes into it");
                self.sums[unit].as_mut().expect(HERE)
            }
        };
        (buffer.view_mut().rows(s.offset, s.shape.len()), seen)
    }
}
