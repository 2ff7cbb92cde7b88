//! The ledger: every byte has an owner and a limit.
//!
//! Bytes are charged as the arena hands them out, in whole cache lines, from the program's allocation to its
//! drop; never by wall clock. So the sequence of charges is a function of the program alone.

use crate::{Arena, ByCategory, Category};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// One entry of a recorded sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A block was taken.
    Take(Block),
    /// A block was given back.
    GiveBack(Block),
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
    /// End of the highest block so far: what the region must reserve, holes included.
    pub reserved: u64,
}

#[derive(Debug)]
struct Inner {
    arena: Arena,
    state: LedgerState,
    recording: Option<Vec<Event>>,
}

/// A device's account of its memory. Clones share one account.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Mutex<Inner>>);

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

/// A block that gives itself back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Ledger,
    pub(crate) block: Block,
}

impl Ledger {
    /// An empty account over a region of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        let inner = Inner { arena: Arena::new(budget), state: LedgerState::default(), recording: None };
        Self(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave the account half-updated: nothing in here panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn charge(&self, bytes: u64, category: Category) -> Result<Charge, OutOfMemory> {
        let mut inner = self.lock();
        let Some(offset) = inner.arena.take(bytes) else {
            return Err(OutOfMemory {
                requested: bytes,
                category,
                live: inner.state.live,
                budget: inner.arena.capacity(),
                largest_hole: inner.arena.largest_hole(),
            });
        };
        let reserved = inner.arena.high_water();
        let s = &mut inner.state;
        s.live[category] += Arena::rounded(bytes);
        s.peak_of_each[category] = s.peak_of_each[category].max(s.live[category]);
        if s.live.total() > s.at_peak.total() {
            s.at_peak = s.live;
        }
        s.reserved = reserved;
        let block = Block { offset, bytes, category };
        if let Some(r) = &mut inner.recording {
            r.push(Event::Take(block));
        }
        Ok(Charge { ledger: self.clone(), block })
    }

    /// What the account says now.
    pub fn state(&self) -> LedgerState {
        self.lock().state
    }

    /// The limit, bytes.
    pub fn budget(&self) -> u64 {
        self.lock().arena.capacity()
    }

    /// Starts a recording of every event from here on.
    pub fn record(&self) {
        self.lock().recording = Some(Vec::new());
    }

    /// Ends the recording and returns it; empty if none was started.
    pub fn recorded(&self) -> Vec<Event> {
        self.lock().recording.take().unwrap_or_default()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut inner = self.ledger.lock();
        inner.arena.give_back(self.block.offset, self.block.bytes);
        inner.state.live[self.block.category] -= Arena::rounded(self.block.bytes);
        if let Some(r) = &mut inner.recording {
            r.push(Event::GiveBack(self.block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_of_the_moment_and_of_each_category() {
        let l = Ledger::new(1 << 20);
        let w = l.charge(640, Category::Weights).unwrap();
        let a = l.charge(1280, Category::Activations).unwrap();
        drop(a);
        let g = l.charge(64, Category::Gradients).unwrap();
        let s = l.state();
        assert_eq!(s.at_peak.total(), 1920);
        assert_eq!(s.at_peak[Category::Gradients], 0);
        assert_eq!(s.peak_of_each[Category::Gradients], 64);
        assert_eq!(s.live.total(), 704);
        drop((w, g));
        assert_eq!(l.state().live.total(), 0);
    }

    #[test]
    fn running_out_says_what_did_not_fit_and_changes_nothing() {
        let l = Ledger::new(1024);
        let _w = l.charge(1000, Category::Weights).unwrap();
        let before = l.state();
        let e = l.charge(64, Category::Activations).unwrap_err();
        assert_eq!((e.requested, e.category, e.live[Category::Weights]), (64, Category::Activations, 1024));
        assert_eq!(l.state(), before);
    }
}
