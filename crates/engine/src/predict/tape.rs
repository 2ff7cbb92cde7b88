//! What a unit does to memory in a phase, apart from where: a tape that is recorded once and replayed for every unit
//! like it.
//!
//! Between units one tensor is handed on: the residual stream forward, its gradient backward. A forward may keep the
//! tensor that it was handed, and tensors of its own, for its backward. A tape says of each block that is given back
//! which of these it is.

use memwall_tensor::{Block, Category, Change, Event, Phase};
use std::ops::Range;

/// A block as a tape knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The tape's own, by its number among those that it takes.
    Own(usize),
    /// What this unit's forward took.
    Kept(usize),
    /// What this unit's forward was handed.
    KeptInput,
    /// What the tape was handed.
    Input,
}

/// One entry of a tape.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Take { bytes: u64, category: Category, operation: &'static str },
    GiveBack { which: Which, operation: &'static str },
}

/// What a unit does in a phase.
#[derive(Debug, Clone)]
pub(super) struct Tape {
    pub(super) phase: Phase,
    pub(super) unit: usize,
    pub(super) acts: Vec<Act>,
    /// What it hands on; the tape's own, or what it was handed itself.
    pub(super) out: Option<Which>,
}

/// Cuts a recorded micro-batch, of units that worked in this order, into tapes. `None` where it is more than what a
/// tape can say.
pub(super) fn cut(events: &[Event], order: &[(Phase, usize)]) -> Option<Vec<Tape>> {
    let last = order.iter().map(|(_, unit)| *unit).max().unwrap_or(0);
    let mut tapes: Vec<Tape> = Vec::with_capacity(order.len());
    // Blocks that are alive, with the tape and number that they come from.
    let mut alive: Vec<(Block, usize, usize)> = Vec::new();
    let mut rest = events;
    for (index, &(phase, unit)) in order.iter().enumerate() {
        let here: Range<usize> = 0..rest
            .iter()
            .position(|e| (e.moment.phase, e.moment.unit) != (phase, Some(unit as u32)))
            .unwrap_or(rest.len());
        let mut tape = Tape { phase, unit, acts: Vec::with_capacity(here.len()), out: None };
        let (mut taken, mut takes_input) = (0, false);
        for Event { change, block, moment } in &rest[here.clone()] {
            let operation = moment.operation;
            if *change == Change::Take {
                alive.push((*block, index, taken));
                taken += 1;
                tape.acts.push(Act::Take { bytes: block.bytes, category: block.category, operation });
                continue;
            }
            let (_, from, number) = alive.swap_remove(alive.iter().rposition(|(b, ..)| b == block)?);
            let which = if from == index {
                Which::Own(number)
            } else if phase == Phase::Backward && unit < last && tapes[from].phase == Phase::Forward {
                if tapes[from].unit == unit { Which::Kept(number) } else { Which::KeptInput }
            } else {
                takes_input = true;
                Which::Input
            };
            if matches!(which, Which::KeptInput | Which::Input) {
                // Of another unit, which therefore handed it on, and can have handed on nothing else.
                let out = &mut tapes[from].out;
                if matches!(*out, Some(Which::Own(other)) if other != number) {
                    return None;
                }
                *out = Some(Which::Own(number));
            }
            tape.acts.push(Act::GiveBack { which, operation });
        }
        // Handed on as it came, unless it turns out that something of its own is.
        tape.out = (!takes_input && index > 0).then_some(Which::Input);
        tapes.push(tape);
        rest = &rest[here.end..];
    }
    (rest.is_empty() && alive.is_empty()).then_some(tapes)
}
