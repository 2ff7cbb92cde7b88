//! The ledger: every byte has an owner and a limit.
//!
//! Bytes are charged as the arena hands them out, in whole cache lines, from the program's allocation to its
//! drop; never by wall clock. So the sequence of charges is a function of the program alone.

use crate::{Account, Block, Category, Difference, Event, Follow, LedgerState, Moment, OutOfMemory, Phase};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device's account of its memory. Clones share one account.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Mutex<Account>>);

/// A block that gives itself back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Ledger,
    pub(crate) block: Block,
}

impl Ledger {
    /// An empty account over a region of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self(Arc::new(Mutex::new(Account::new(budget))))
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        // A panic elsewhere cannot leave the account half-updated: nothing in here panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn charge(&self, bytes: u64, category: Category) -> Result<Charge, OutOfMemory> {
        let block = self.lock().take(bytes, category)?;
        Ok(Charge { ledger: self.clone(), block })
    }

    /// A copy of the account as it is now.
    pub fn account(&self) -> Account {
        self.lock().clone()
    }

    /// A phase begins.
    pub fn enter(&self, phase: Phase) {
        self.lock().enter(phase);
    }

    /// A unit begins its part of the phase, or the part of the units is over.
    pub fn at_unit(&self, unit: impl Into<Option<usize>>) {
        self.lock().at_unit(unit.into().map(|u| u as u32));
    }

    /// An operation begins that allocates.
    pub fn operation(&self, operation: &'static str) {
        self.lock().operation(operation);
    }

    /// Where the program is.
    pub fn moment(&self) -> Moment {
        self.lock().moment()
    }

    /// What the account says now.
    pub fn state(&self) -> LedgerState {
        self.lock().state()
    }

    /// The limit, bytes.
    pub fn budget(&self) -> u64 {
        self.lock().budget()
    }

    /// Starts a recording of every event from here on.
    pub fn record(&self) {
        self.lock().record();
    }

    /// Ends the recording and returns it; empty if none was started.
    pub fn recorded(&self) -> Vec<Event> {
        self.lock().recorded()
    }

    /// Compares every event from here on with these, `times` over.
    pub fn follow(&self, expected: &Arc<[Event]>, times: u64) {
        self.lock().follow(Follow::new(expected.clone(), times));
    }

    /// Ends the comparison: the first difference, if there was one.
    pub fn followed(&self) -> Option<Difference> {
        self.lock().followed()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.lock().give_back(self.block);
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
