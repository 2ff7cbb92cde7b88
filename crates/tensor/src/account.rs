//! The account of a device's memory: what is alive, what was highest and when. Pure code, which a run keeps behind
//! its [`crate::Ledger`], and which a prediction replays by itself.

use crate::{Arena, ByCategory, Category, Difference, Follow, Moment, Phase};
use thiserror::Error;

/// An allocation that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "out of memory: {requested} bytes of {} do not fit: {} of {budget} bytes are in use, and the largest free \
     block is {largest_hole} bytes",
    category.name(), live.total()
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// What they were for.
    pub category: Category,
    /// Bytes in use at that moment.
    pub live: ByCategory,
    /// The device's limit, bytes.
    pub budget: u64,
    /// Largest block that would have fitted, bytes.
    pub largest_hole: u64,
}

/// A place in the arena, with what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Offset in the region, bytes.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// What it is for.
    pub category: Category,
}

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was taken.
    Take,
    /// It was given back.
    GiveBack,
}

/// One entry of a recorded sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub change: Change,
    /// To which block.
    pub block: Block,
    /// And when.
    pub moment: Moment,
}

/// What the ledger says at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerState {
    /// Bytes in use.
    pub live: ByCategory,
    /// The highest that each category has been, at whatever moment.
    pub peak_of_each: ByCategory,
    /// The categories at the moment when their sum was highest.
    pub at_peak: ByCategory,
    /// When that was first.
    pub peak: Moment,
    /// The same within each phase, in the order of [`Phase::ALL`]; nothing in phases that have not been.
    pub at_peak_of_phase: [ByCategory; 6],
    /// End of the highest block so far: what the region must reserve, holes included.
    pub reserved: u64,
}

impl LedgerState {
    /// The categories when their sum was highest within a phase; `None` for a phase that has not been.
    pub fn at_peak_in(&self, phase: Phase) -> Option<ByCategory> {
        Some(self.at_peak_of_phase[phase as usize]).filter(|bytes| bytes.total() > 0)
    }
}

/// The account itself.
#[derive(Debug, Clone)]
pub struct Account {
    arena: Arena,
    state: LedgerState,
    /// Sums of `state.live`, of `state.at_peak`, and of `state.at_peak_of_phase` in the present phase.
    totals: [u64; 3],
    moment: Moment,
    recording: Option<Vec<Event>>,
    follow: Option<Follow>,
}

impl Account {
    /// An empty account over a region of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self {
            arena: Arena::new(budget),
            state: LedgerState::default(),
            totals: [0; 3],
            moment: Moment::default(),
            recording: None,
            follow: None,
        }
    }

    /// A phase begins.
    pub fn enter(&mut self, phase: Phase) {
        self.moment = Moment { phase, unit: None, operation: "" };
        self.totals[2] = self.state.at_peak_of_phase[phase as usize].total();
        self.see_peaks();
    }

    /// A unit begins its part of the phase.
    pub fn at_unit(&mut self, unit: Option<u32>) {
        self.moment = Moment { unit, operation: "", ..self.moment };
    }

    /// An operation begins.
    pub fn operation(&mut self, operation: &'static str) {
        self.moment.operation = operation;
    }

    /// Where the program is.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Takes a block.
    ///
    /// # Errors
    /// No hole is large enough; then nothing has changed.
    pub fn take(&mut self, bytes: u64, category: Category) -> Result<Block, OutOfMemory> {
        let Some(offset) = self.arena.take(bytes) else {
            return Err(OutOfMemory {
                requested: bytes,
                category,
                live: self.state.live,
                budget: self.arena.capacity(),
                largest_hole: self.arena.largest_hole(),
            });
        };
        let s = &mut self.state;
        s.live[category] += Arena::rounded(bytes);
        s.peak_of_each[category] = s.peak_of_each[category].max(s.live[category]);
        s.reserved = self.arena.high_water();
        self.totals[0] += Arena::rounded(bytes);
        self.see_peaks();
        let block = Block { offset, bytes, category };
        self.note(Change::Take, block);
        Ok(block)
    }

    /// Gives a block back that was taken and not given back since.
    pub fn give_back(&mut self, block: Block) {
        self.arena.give_back(block.offset, block.bytes);
        self.state.live[block.category] -= Arena::rounded(block.bytes);
        self.totals[0] -= Arena::rounded(block.bytes);
        self.note(Change::GiveBack, block);
    }

    fn see_peaks(&mut self) {
        let [total, highest, highest_of_phase] = &mut self.totals;
        if total > highest_of_phase {
            *highest_of_phase = *total;
            self.state.at_peak_of_phase[self.moment.phase as usize] = self.state.live;
        }
        if total > highest {
            *highest = *total;
            (self.state.at_peak, self.state.peak) = (self.state.live, self.moment);
        }
    }

    fn note(&mut self, change: Change, block: Block) {
        let event = Event { change, block, moment: self.moment };
        if let Some(recording) = &mut self.recording {
            recording.push(event);
        }
        if let Some(follow) = &mut self.follow {
            follow.see(event);
        }
    }

    /// What the account says now.
    pub fn state(&self) -> LedgerState {
        self.state
    }

    /// The limit, bytes.
    pub fn budget(&self) -> u64 {
        self.arena.capacity()
    }

    /// Starts a recording of every event from here on.
    pub fn record(&mut self) {
        self.recording = Some(Vec::new());
    }

    /// Ends the recording and returns it; empty if none was started.
    pub fn recorded(&mut self) -> Vec<Event> {
        self.recording.take().unwrap_or_default()
    }

    /// Compares every event from here on with what is expected.
    pub fn follow(&mut self, follow: Follow) {
        self.follow = Some(follow);
    }

    /// Ends the comparison: the first difference, if there was one.
    pub fn followed(&mut self) -> Option<Difference> {
        self.follow.take().and_then(Follow::end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_know_their_phase_and_moment() {
        let mut a = Account::new(1 << 20);
        let w = a.take(640, Category::Weights).unwrap();
        a.enter(Phase::Forward);
        a.at_unit(Some(3));
        a.operation("linear");
        let x = a.take(1280, Category::Activations).unwrap();
        a.operation("norm");
        a.give_back(x);
        let y = a.take(1280, Category::Activations).unwrap();
        a.give_back(y);
        a.enter(Phase::Optimizer);
        let s = a.state();
        // The first moment of the two that are equal.
        assert_eq!(s.peak, Moment { phase: Phase::Forward, unit: Some(3), operation: "linear" });
        let totals = Phase::ALL.map(|p| s.at_peak_in(p).map(|bytes| bytes.total()));
        // A phase that allocates nothing holds what was there when it began.
        assert_eq!(totals, [Some(640), Some(1920), None, Some(640), None, None]);
        a.give_back(w);
    }
}
