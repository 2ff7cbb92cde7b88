//! Weights that are whole only while they are used: each unit's are gathered before its turn, the next one's meanwhile, and at
//! most two units' exist at a time.

use crate::{EngineError, FlatLayout};
use memwall_comm::{Call, CommError, Group, Pending};
use memwall_layout::Placements;
use memwall_model::{ModelSpec, UnitKind};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Shape, Tensor};

/// A turn of a pass: the units whose weights it needs, each with the slot that they are gathered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn([Option<(usize, usize)>; 2]);

/// Slots that units take in turns.
const SLOTS: usize = 2;

/// The turns of a pass over a model of `units` units: embedding, blocks, head, and when `training` the blocks backward. The
/// embedding's backward needs no weights. A slot that still holds what a turn needs is not gathered again: of the last block,
/// forward and backward lie two turns apart.
fn turns(units: usize, tied: bool, training: bool) -> Vec<Turn> {
    let last = units - 1;
    let forward = (0..last).map(|unit| [Some(unit), None]);
    // A tied head reads the embedding's table, and its own norm, which is small and has a slot of its own.
    let head = if tied { [Some(0), Some(last)] } else { [Some(last), None] };
    let backward = (1..last).rev().map(|unit| [Some(unit), None]).filter(|_| training);
    let needs = forward.chain([head]).chain(backward);
    let slots = |(turn, [main, small]): (usize, [Option<usize>; 2])| {
        Turn([main.map(|unit| (unit, turn % SLOTS)), small.map(|unit| (unit, SLOTS))])
    };
    needs.enumerate().map(slots).collect()
}

/// Room for a unit's whole weights.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are three, which are moved whole")]
enum Slot<D: Memory> {
    /// Nothing that counts.
    Idle(Tensor<D>),
    /// This unit's weights.
    Whole(usize, Tensor<D>),
    /// This unit's weights, on their way.
    Flying(usize, Pending<D>),
    /// A collective that failed has it.
    Lost,
}

impl<D: Memory> Slot<D> {
    fn holds(&self, unit: usize) -> bool {
        matches!(self, Slot::Whole(u, _) | Slot::Flying(u, _) if *u == unit)
    }
}

/// The slots, and the pass under way.
#[derive(Debug)]
pub(crate) struct Gather<D: Memory> {
    slots: Vec<Slot<D>>,
    /// Turns of a pass without backward, and of one with.
    turns: [Vec<Turn>; 2],
    training: bool,
    next: usize,
}

impl<D: Device> Gather<D> {
    /// Allocates the slots.
    pub(crate) fn new(
        device: &D,
        spec: &ModelSpec,
        layout: &FlatLayout,
        dtype: DType,
    ) -> Result<Self, EngineError> {
        let (units, tied) = (layout.units.len(), is_tied(spec));
        let small = tied.then_some(units - 1);
        let largest =
            (0..units).filter(|u| Some(*u) != small).map(|u| layout.units[u].len).max().unwrap_or(0);
        let slot = |len: usize| {
            device.ledger().operation("gathered weights");
            let shape = Shape::vector(len);
            Ok(Slot::Idle(Tensor::new(device, shape, dtype, Placements::REPLICATED, Category::Gathered)?))
        };
        let lens = [largest; SLOTS].into_iter().chain(small.map(|unit| layout.units[unit].len));
        Ok(Self {
            slots: lens.map(slot).collect::<Result<_, EngineError>>()?,
            turns: [false, true].map(|training| turns(units, tied, training)),
            training: false,
            next: 0,
        })
    }

    /// A pass begins; weights may have changed since the one before.
    pub(crate) fn begin(&mut self, training: bool) {
        (self.training, self.next) = (training, 0);
        for slot in &mut self.slots {
            *slot = match std::mem::replace(slot, Slot::Lost) {
                Slot::Whole(_, whole) => Slot::Idle(whole),
                other => other,
            };
        }
    }

    /// The next turn begins.
    pub(crate) fn advance(
        &mut self,
        device: &D,
        group: &dyn Group<D>,
        layout: &FlatLayout,
        shards: &mut [Option<Tensor<D>>],
    ) -> Result<(), CommError> {
        let turns = &self.turns[usize::from(self.training)];
        let turn = |at: usize| turns.get(at).into_iter().flat_map(|turn| turn.0).flatten();
        let (now, then) = (self.next, self.next + 1);
        let (now, then): (Vec<_>, Vec<_>) = (turn(now).collect(), turn(then).collect());
        self.next += 1;
        for (unit, slot) in now {
            self.send_for(device, group, layout, shards, unit, slot)?;
            if let Slot::Flying(..) = &self.slots[slot]
                && let Slot::Flying(_, pending) = std::mem::replace(&mut self.slots[slot], Slot::Lost)
            {
                let (whole, shard) = group.wait(device, pending)?.into_whole_and_part();
                shards[unit] = Some(shard);
                self.slots[slot] = Slot::Whole(unit, whole);
            }
        }
        then.into_iter().try_for_each(|(unit, slot)| self.send_for(device, group, layout, shards, unit, slot))
    }

    /// Starts to gather a unit's weights, unless they are there or on their way.
    fn send_for(
        &mut self,
        device: &D,
        group: &dyn Group<D>,
        layout: &FlatLayout,
        shards: &mut [Option<Tensor<D>>],
        unit: usize,
        slot: usize,
    ) -> Result<(), CommError> {
        if self.slots[slot].holds(unit) {
            return Ok(());
        }
        let whole = match std::mem::replace(&mut self.slots[slot], Slot::Lost) {
            Slot::Idle(whole) | Slot::Whole(_, whole) => whole,
            Slot::Flying(..) | Slot::Lost => panic!("a slot is free before another unit's turn"),
        };
        let whole = whole.window(0, Shape::vector(layout.units[unit].len));
        let part = Some(shards[unit].take().expect("a shard that is not being gathered is here"));
        self.slots[slot] = Slot::Flying(unit, group.start(device, Call::AllGather { part, whole })?);
        Ok(())
    }
}

impl<D: Memory> Gather<D> {
    /// A unit's whole weights.
    pub(crate) fn whole(&self, unit: usize) -> &Tensor<D> {
        let held = self.slots.iter().find_map(|slot| match slot {
            Slot::Whole(u, whole) if *u == unit => Some(whole),
            _ => None,
        });
        held.expect("a unit's weights are gathered before its turn")
    }
}

/// Whether the head's matrix is the embedding's table.
pub(crate) fn is_tied(spec: &ModelSpec) -> bool {
    spec.units.last().is_some_and(|unit| match unit.kind {
        UnitKind::Head { weight, .. } => !unit.params.contains(&weight),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_and_the_next_never_share_a_slot_for_different_units() {
        for units in 3..9 {
            for (tied, training) in [(false, false), (false, true), (true, false), (true, true)] {
                let turns = turns(units, tied, training);
                for pair in turns.windows(2) {
                    for (unit, slot) in pair[0].0.into_iter().flatten() {
                        for (other, same) in pair[1].0.into_iter().flatten() {
                            assert!(slot != same || unit == other, "{pair:?}");
                        }
                    }
                }
                let visited: Vec<usize> = turns.iter().map(|t| t.0[0].unwrap().0).collect();
                assert_eq!(visited.len(), if training { 2 * units - 2 } else { units });
            }
        }
    }
}
