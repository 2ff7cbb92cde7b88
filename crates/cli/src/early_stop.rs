//! Stopping a run early: after so many evaluations without improvement of the held-out loss.
//!
//! What the rule remembers is a function of the evaluations in metrics.jsonl, so that a run that goes on reads it
//! from there and stops at the step at which an uninterrupted one does.

use crate::job::EarlyStop;
use serde_json::{Value, json};

/// The rule and what it has seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Watch {
    rule: Option<EarlyStop>,
    /// Steps between the evaluations that count.
    every: u64,
    /// Step and loss of the best evaluation; infinite before the first.
    best: (u64, f64),
    /// Evaluations since then.
    without: u64,
}

impl Watch {
    /// Has seen nothing; stops nothing without a rule. Only evaluations at multiples of `every` count: the one at
    /// the end of a run would not have been made if the run had been longer.
    pub(crate) fn new(rule: Option<EarlyStop>, every: Option<u64>) -> Self {
        Self { rule, every: every.unwrap_or(u64::MAX), best: (0, f64::INFINITY), without: 0 }
    }

    /// Takes the loss of the evaluation after `step`.
    pub(crate) fn evaluated(&mut self, step: u64, loss: f64) {
        let Some(rule) = self.rule.filter(|_| step.is_multiple_of(self.every) && self.stopped().is_none())
        else {
            return;
        };
        // A loss that is not a number is no improvement.
        if loss < self.best.1 - rule.min_delta {
            (self.best, self.without) = ((step, loss), 0);
        } else {
            self.without += 1;
        }
    }

    /// Why the run is to stop, if it is.
    pub(crate) fn stopped(&self) -> Option<Stopped> {
        let (rule, (best_step, best_loss)) = (self.rule?, self.best);
        (self.without >= rule.patience).then_some(Stopped { rule, best_step, best_loss, every: self.every })
    }
}

/// Why a run stopped early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stopped {
    rule: EarlyStop,
    best_step: u64,
    best_loss: f64,
    every: u64,
}

impl Stopped {
    /// The reason in words.
    pub(crate) fn reason(&self) -> String {
        let EarlyStop { patience, min_delta } = self.rule;
        let by = if min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
        format!(
            "the held-out loss did not improve{by} on {:.4} (step {}) in {patience} evaluations, one every {} steps",
            self.best_loss, self.best_step, self.every
        )
    }

    /// For summary.json.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "reason": self.reason(), "best_evaluation_loss": self.best_loss, "best_step": self.best_step,
            "evaluations_without_improvement": self.rule.patience,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step after which a run with these evaluations, one every two steps, stops.
    fn stops(patience: u64, min_delta: f64, losses: &[f64]) -> Option<u64> {
        let mut watch = Watch::new(Some(EarlyStop { patience, min_delta }), Some(2));
        losses.iter().zip(1..).find_map(|(loss, k)| {
            watch.evaluated(2 * k, *loss);
            watch.stopped().map(|_| 2 * k)
        })
    }

    #[test]
    fn a_run_stops_after_so_many_evaluations_without_improvement() {
        assert_eq!(stops(1, 0.0, &[3.0, 2.0, 1.0]), None);
        assert_eq!(stops(1, 0.0, &[3.0, 3.0, 1.0]), Some(4));
        assert_eq!(stops(2, 0.0, &[3.0, 3.1, 2.9, 3.0, 2.9, 1.0]), Some(10));
        assert_eq!(stops(2, 0.5, &[3.0, 2.6, 2.4, 2.0, 1.9]), Some(10));
        assert_eq!(stops(2, 0.0, &[3.0, f64::NAN, f64::INFINITY]), Some(6));
        assert_eq!(stops(2, 0.0, &[f64::NAN, 3.0, 2.0]), None);
        assert_eq!(stops(1, 0.0, &[f64::NAN, 3.0]), Some(2));
        assert_eq!(stops(3, 0.0, &[]), None);
    }

    #[test]
    fn without_a_rule_nothing_stops_and_the_last_evaluation_of_a_run_does_not_count() {
        let mut watch = Watch::new(None, Some(1));
        (1..100).for_each(|k| watch.evaluated(k, 1.0));
        assert_eq!(watch.stopped(), None);
        let mut watch = Watch::new(Some(EarlyStop { patience: 1, min_delta: 0.0 }), Some(5));
        watch.evaluated(5, 2.0);
        watch.evaluated(7, 9.0);
        assert_eq!(watch.stopped(), None);
        watch.evaluated(10, 9.0);
        assert!(watch.stopped().is_some());
    }
}
