//! A prediction that is compared with a run while it runs, event by event.

use crate::Event;
use std::fmt;
use std::sync::Arc;

/// The events that are expected, and how far they have come.
#[derive(Debug, Clone)]
pub struct Follow {
    expected: Arc<[Event]>,
    times: u64,
    seen: u64,
    difference: Option<Difference>,
}

/// The first event that was not the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Events before it.
    pub index: u64,
    /// What should have happened; `None` after the last.
    pub expected: Option<Event>,
    /// What happened; `None` where less happened.
    pub found: Option<Event>,
}

impl Follow {
    /// Expects these events this many times over.
    pub fn new(expected: Arc<[Event]>, times: u64) -> Self {
        Self { expected, times, seen: 0, difference: None }
    }

    /// What comes next.
    fn next(&self) -> Option<Event> {
        let n = self.expected.len() as u64;
        (self.seen < n.saturating_mul(self.times)).then(|| self.expected[(self.seen % n) as usize])
    }

    pub(crate) fn see(&mut self, found: Event) {
        if self.difference.is_some() {
            return;
        }
        let expected = self.next();
        if expected == Some(found) {
            self.seen += 1;
        } else {
            self.difference = Some(Difference { index: self.seen, expected, found: Some(found) });
        }
    }

    pub(crate) fn end(self) -> Option<Difference> {
        let missing = || self.next().map(|e| Difference { index: self.seen, expected: Some(e), found: None });
        self.difference.or_else(missing)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = |e: Option<Event>| match e {
            None => "nothing".to_owned(),
            Some(Event { change, block, moment }) => format!(
                "{} {} bytes of {} at offset {} ({moment})",
                if change == crate::Change::Take { "take" } else { "give back" },
                block.bytes,
                block.category.name(),
                block.offset
            ),
        };
        write!(f, "event {}: expected {}, found {}", self.index + 1, event(self.expected), event(self.found))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Account, Category, Follow};
    use proptest::prelude::*;

    /// Takes a block of each size, and gives all back.
    fn once(account: &mut Account, sizes: &[u64]) {
        let blocks: Vec<_> = sizes.iter().map(|b| account.take(*b, Category::Activations).unwrap()).collect();
        blocks.into_iter().for_each(|b| account.give_back(b));
    }

    proptest! {
        #[test]
        fn any_difference_is_found_where_it_is(
            sizes in prop::collection::vec(1u64..9, 1..8), times in 1u64..4, at in any::<prop::sample::Index>(), less: bool,
        ) {
            let mut account = Account::new(1 << 16);
            account.record();
            once(&mut account, &sizes);
            let expected: std::sync::Arc<[_]> = account.recorded().into();
            let mut run = |change: &dyn Fn(u64) -> Vec<u64>| {
                account.follow(Follow::new(expected.clone(), times));
                (0..times).for_each(|i| once(&mut account, &change(i)));
                account.followed()
            };
            prop_assert_eq!(run(&|_| sizes.clone()), None);
            // One block is a byte larger in the last round, or is not taken.
            let at = at.index(sizes.len());
            let difference = run(&|i| {
                let mut sizes = sizes.clone();
                if i + 1 == times {
                    if less { sizes.remove(at); } else { sizes[at] += 1; }
                }
                sizes
            });
            let index = (times - 1) * 2 * sizes.len() as u64 + at as u64;
            // A block that is missing beside others of its size is missed where theirs end.
            let first = if less { sizes[at..].iter().take_while(|s| **s == sizes[at]).count() as u64 - 1 } else { 0 };
            let difference = difference.expect("a difference");
            prop_assert_eq!(difference.index, index + first);
            let text = difference.to_string();
            let event = format!("event {}: expected take {} bytes of activations", index + first + 1, sizes[at]);
            prop_assert!(text.starts_with(&event), "{}", text);
        }
    }

    #[test]
    fn what_comes_after_the_last_expected_event_is_a_difference() {
        let mut account = Account::new(1 << 16);
        account.follow(Follow::new([].into(), 3));
        once(&mut account, &[1]);
        let difference = account.followed().expect("a difference");
        assert!(difference.expected.is_none() && difference.found.is_some());
        assert!(account.followed().is_none());
    }
}
