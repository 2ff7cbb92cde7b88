//! Weights that are whole only while they are used: each unit's are gathered before its turn, the next one's meanwhile, and at
//! most two blocks' and the embedding's or the head's exist at a time.

use crate::{EngineError, FlatLayout};
use memwall_comm::{Call, CommError, Group, Pending};
use memwall_layout::Placements;
use memwall_model::{ModelSpec, UnitKind};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Shape, Tensor};

/// A turn of a pass: the buffers that it needs whole, each with the slot that it is gathered in. Buffers are numbered as in
/// [`crate::Weights`]: of each unit the trained weights, then of each unit the frozen ones.
type Turn = Vec<(usize, usize)>;

/// Slots: blocks take two of them in turns, embedding and head share one, since they are large and blocks lie between them, and
/// a tied head's own weights have one. There are as many again for frozen weights.
const SLOTS: usize = 4;

/// The slot of a unit's trained weights.
fn slot(unit: usize, last: usize, tied: bool) -> usize {
    match unit {
        0 => 2,
        unit if unit == last => 2 + usize::from(tied),
        block => block % 2,
    }
}

/// The turns of a pass over a model: embedding, blocks, head, and when `training` the blocks backward. The
/// embedding's backward needs no weights. A slot that still holds what a turn needs is not gathered again: that of the last
/// block does, and that of the one before it.
fn turns(layout: &FlatLayout, tied: bool, training: bool) -> Vec<Turn> {
    let units = layout.units.len();
    let last = units - 1;
    let forward = (0..last).map(|unit| [Some(unit), None]);
    // A tied head reads the embedding's table, and its own norm, which is small and has a slot of its own.
    let head = if tied { [Some(0), Some(last)] } else { [Some(last), None] };
    let backward = (1..last).rev().map(|unit| [Some(unit), None]).filter(|_| training);
    let needs = forward.chain([head]).chain(backward);
    let buffers = |unit: usize| {
        let slot = slot(unit, last, tied);
        let trained = (layout.units[unit].len > 0).then_some((unit, slot));
        let frozen = (layout.frozen[unit].len > 0).then_some((units + unit, SLOTS + slot));
        trained.into_iter().chain(frozen)
    };
    needs.map(|needs| needs.into_iter().flatten().flat_map(buffers).collect()).collect()
}

/// Elements of a buffer.
fn len(layout: &FlatLayout, id: usize) -> usize {
    let units = layout.units.len();
    if id < units { layout.units[id].len } else { layout.frozen[id - units].len }
}

/// Room for a whole buffer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are three, which are moved whole")]
enum Slot<D: Memory> {
    /// Nothing that counts.
    Idle(Tensor<D>),
    /// This buffer.
    Whole(usize, Tensor<D>),
    /// This buffer, on its way.
    Flying(usize, Pending<D>),
    /// A collective that failed has it, or nothing is ever gathered in it.
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
        let turns = [false, true].map(|training| turns(layout, is_tied(spec), training));
        let mut lens = [0; 2 * SLOTS];
        for (id, slot) in turns.iter().flatten().flatten() {
            lens[*slot] = lens[*slot].max(len(layout, *id));
        }
        let slot = |len: usize| {
            if len == 0 {
                return Ok(Slot::Lost);
            }
            device.ledger().operation("gathered weights");
            let shape = Shape::vector(len);
            Ok(Slot::Idle(Tensor::new(device, shape, dtype, Placements::REPLICATED, Category::Gathered)?))
        };
        Ok(Self {
            slots: lens.into_iter().map(slot).collect::<Result<_, EngineError>>()?,
            turns,
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
        let turn = |at: usize| turns.get(at).cloned().unwrap_or_default();
        let (now, then) = (turn(self.next), turn(self.next + 1));
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
        let whole = whole.window(0, Shape::vector(len(layout, unit)));
        let part = Some(shards[unit].take().expect("a shard that is not being gathered is here"));
        self.slots[slot] = Slot::Flying(unit, group.start(device, Call::AllGather { part, whole })?);
        Ok(())
    }
}

impl<D: Memory> Gather<D> {
    /// A buffer, where it is whole.
    pub(crate) fn whole(&self, id: usize) -> Option<&Tensor<D>> {
        self.slots.iter().find_map(|slot| match slot {
            Slot::Whole(held, whole) if *held == id => Some(whole),
            _ => None,
        })
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
    use memwall_model::ModelConfig;

    #[test]
    fn a_turn_and_the_next_never_share_a_slot_for_different_buffers() {
        for layers in 1..7 {
            for (tied, training) in [(false, false), (false, true), (true, false), (true, true)] {
                let config = serde_json::json!({
                    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "num_attention_heads": 2,
                    "vocab_size": 31, "tie_word_embeddings": tied,
                });
                let mut spec = ModelSpec::new(ModelConfig::from_value(&config).unwrap());
                spec.params.iter_mut().filter(|p| p.shape.len() == 1).for_each(|p| p.frozen = true);
                let (layout, units) = (FlatLayout::new(&spec, 2), spec.units.len());
                let turns = turns(&layout, tied, training);
                for pair in turns.windows(2) {
                    for (id, slot) in &pair[0] {
                        assert!(pair[1].iter().all(|(other, same)| slot != same || id == other), "{pair:?}");
                    }
                }
                assert_eq!(turns.len(), if training { 2 * units - 2 } else { units });
                // Blocks have both kinds of weights, and a head its norm and a matrix.
                assert!(turns[1].len() == 2 && turns[units - 1].len() == 2, "{turns:?}");
            }
        }
    }
}
