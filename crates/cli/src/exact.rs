//! Whether memory is what was predicted, event by event, while a run goes on.

use crate::failure::Failure;
use memwall_tensor::{Difference, Event, Ledger};
use serde_json::{Value, json};
use std::sync::Arc;

/// The comparison of a run with its prediction.
pub(crate) struct Exact {
    ledger: Ledger,
    /// Whether a difference ends the run.
    required: bool,
    /// The first difference, and where it was.
    first: Option<(String, Difference)>,
}

impl Exact {
    /// Of the run whose account this is.
    pub(crate) fn new(ledger: Ledger, required: bool) -> Self {
        Self { ledger, required, first: None }
    }

    /// Carries out `work`, which is to do to memory what `expected` says, `times` over.
    ///
    /// # Errors
    /// Those of `work`; a difference, where that is required to be none.
    pub(crate) fn during<T, E: Into<Failure>>(
        &mut self,
        what: &str,
        expected: &Arc<[Event]>,
        times: u64,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Failure> {
        self.ledger.follow(expected, times);
        let done = work();
        let difference = self.ledger.followed();
        // Work that failed was cut off, which is no difference of the prediction's.
        let done = done.map_err(Into::into)?;
        if let Some(difference) = difference.filter(|_| self.first.is_none()) {
            self.first = Some((what.to_owned(), difference));
            if self.required {
                return Err(Failure::Failed(format!(
                    "{}; memory.exact = \"require\" makes this a failure. It is a defect of memwall: please report it",
                    self.text().unwrap_or_default()
                )));
            }
        }
        Ok(done)
    }

    /// The first difference, if there was one.
    pub(crate) fn text(&self) -> Option<String> {
        let (what, difference) = self.first.as_ref()?;
        Some(format!("{what}: memory is not what was predicted: {difference}"))
    }

    /// Whether there was none.
    pub(crate) fn holds(&self) -> bool {
        self.first.is_none()
    }

    /// The first difference for the summary.
    pub(crate) fn to_json(&self) -> Value {
        let event = |e: Option<Event>| {
            e.map(|Event { change, block, moment }| {
                json!({
                    "change": if change == memwall_tensor::Change::Take { "take" } else { "give_back" },
                    "bytes": block.bytes, "offset": block.offset, "category": block.category.name(),
                    "phase": moment.phase.name(), "unit": moment.unit, "operation": moment.operation,
                })
            })
        };
        self.first.as_ref().map_or(Value::Null, |(what, d)| {
            json!({"during": what, "event": d.index + 1, "expected": event(d.expected), "found": event(d.found)})
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwall_engine::EngineError;
    use memwall_tensor::device::Memory;
    use memwall_tensor::{Category, DType, Description, Dry};

    /// A device, and what one allocation of `elements` does to it.
    fn expecting(elements: usize) -> (Dry, Arc<[Event]>) {
        let device = Dry::new(Description { threads: 1 }, 64 << 20).unwrap();
        device.ledger().record();
        work(&device, elements).unwrap();
        let events = device.ledger().recorded();
        (device, events.into())
    }

    fn work(device: &Dry, elements: usize) -> Result<(), EngineError> {
        drop(device.alloc(elements, DType::F32, Category::Activations)?);
        Ok(())
    }

    #[test]
    fn a_run_that_does_something_else_goes_on_and_says_so_or_fails_where_that_is_required() {
        let (device, expected) = expecting(100);
        let mut exact = Exact::new(device.ledger().clone(), false);
        exact
            .during("step 1", &expected, 2, || work(&device, 100).and_then(|()| work(&device, 100)))
            .unwrap();
        assert!(exact.holds() && exact.to_json().is_null());
        exact.during("step 2", &expected, 1, || work(&device, 101)).unwrap();
        exact.during("step 3", &expected, 1, || work(&device, 102)).unwrap();
        let text = exact.text().unwrap();
        assert!(
            text.starts_with("step 2: memory is not what was predicted: event 1: expected take 400 bytes"),
            "{text}"
        );
        assert!(!exact.holds());
        assert_eq!(
            (&exact.to_json()["during"], &exact.to_json()["found"]["bytes"]),
            (&"step 2".into(), &404.into())
        );

        let mut required = Exact::new(device.ledger().clone(), true);
        required.during("step 1", &expected, 1, || work(&device, 100)).unwrap();
        let failure = required.during("step 2", &expected, 1, || work(&device, 101)).unwrap_err();
        assert_eq!(failure.code(), 1);
        assert!(
            failure.to_string().contains("step 2: memory is not what was predicted: event 1"),
            "{failure}"
        );
    }

    #[test]
    fn work_that_fails_is_told_as_that() {
        let (device, expected) = expecting(100);
        let mut exact = Exact::new(device.ledger().clone(), true);
        let failure = exact.during("step 1", &expected, 1, || work(&device, 1 << 30)).unwrap_err();
        assert!(failure.to_string().contains("out of memory") && exact.holds(), "{failure}");
    }
}
