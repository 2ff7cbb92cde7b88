//! What each rank's time went into, and how even that is.

use crate::job::show_bytes;
use memwall_comm::Clock;
use memwall_engine::STATISTICS;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// What a rank's steps took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spent {
    /// Steps.
    pub(crate) steps: u64,
    /// In all.
    total: Duration,
    /// Of it in collectives.
    inside: Duration,
    /// Of that waiting for other ranks.
    waiting: Duration,
}

impl Spent {
    /// A step has been done; the clocks are those before it and after it.
    pub(crate) fn step(&mut self, total: Duration, before: Clock, after: Clock) {
        self.steps += 1;
        self.total += total;
        self.inside += after.inside - before.inside;
        self.waiting += after.waiting - before.waiting;
    }
}

/// What a rank tells the others at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Account {
    /// What its steps took.
    pub(crate) spent: Spent,
    /// Bytes that it has had resident; `None` where the system does not tell.
    pub(crate) resident: Option<u64>,
    /// Whether these were as predicted.
    pub(crate) resident_agrees: bool,
    /// Whether memory was what was predicted, event by event.
    pub(crate) memory_equal: bool,
    /// Whether bytes on the wire were.
    pub(crate) wire_equal: bool,
}

impl Account {
    /// As numbers that ranks can gather.
    pub(crate) fn to_numbers(self) -> [u64; STATISTICS] {
        let flags = [self.resident.is_some(), self.resident_agrees, self.memory_equal, self.wire_equal];
        let flags = flags.into_iter().enumerate().map(|(bit, set)| u64::from(set) << bit).sum();
        let nanos = |d: Duration| d.as_nanos() as u64;
        let s = self.spent;
        let mut numbers = [0; STATISTICS];
        numbers[..6].copy_from_slice(&[
            flags,
            self.resident.unwrap_or(0),
            s.steps,
            nanos(s.total),
            nanos(s.inside),
            nanos(s.waiting),
        ]);
        numbers
    }

    /// From these numbers.
    pub(crate) fn from_numbers(numbers: [u64; STATISTICS]) -> Self {
        let [flags, resident, steps, total, inside, waiting, ..] = numbers;
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let spent = Spent {
            steps,
            total: Duration::from_nanos(total),
            inside: Duration::from_nanos(inside),
            waiting: Duration::from_nanos(waiting),
        };
        Self {
            spent,
            resident: Some(resident).filter(|_| flag(0)),
            resident_agrees: flag(1),
            memory_equal: flag(2),
            wire_equal: flag(3),
        }
    }

    /// Seconds a step.
    fn step_seconds(&self) -> f64 {
        self.spent.total.as_secs_f64() / self.spent.steps.max(1) as f64
    }

    /// Share of the steps' time in collectives.
    fn communication(&self) -> f64 {
        share(self.spent.inside, self.spent.total)
    }

    /// Share of the steps' time waiting for other ranks, which is a part of that in collectives.
    fn waiting(&self) -> f64 {
        share(self.spent.waiting, self.spent.total)
    }

    /// Time that the rank computed by itself.
    fn own(&self) -> Duration {
        self.spent.total.saturating_sub(self.spent.inside)
    }

    fn to_json(self, rank: usize) -> Value {
        json!({
            "rank": rank,
            "step_seconds": self.step_seconds(),
            "communication_share": self.communication(),
            "waiting_share": self.waiting(),
            "own_seconds": self.own().as_secs_f64(),
            "resident_bytes": self.resident,
            "resident_agrees": self.resident.map(|_| self.resident_agrees),
            "memory_equal": self.memory_equal,
            "wire_equal": self.wire_equal,
        })
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// The slowest rank's own time over the mean: 1 where all take as long.
pub(crate) fn imbalance(ranks: &[Account]) -> f64 {
    let own: Vec<f64> = ranks.iter().map(|r| r.own().as_secs_f64()).collect();
    let mean = own.iter().sum::<f64>() / own.len().max(1) as f64;
    if mean > 0.0 { own.iter().fold(0.0, |most: f64, t| most.max(*t)) / mean } else { 1.0 }
}

/// The table of all ranks; nothing for one that is alone.
pub(crate) fn text(ranks: &[Account]) -> String {
    if ranks.len() < 2 {
        return String::new();
    }
    let mut text = format!(
        "ranks      {:<8}{:>12}{:>16}{:>10}{:>14}\n",
        "", "a step", "communication", "waiting", "resident"
    );
    for (rank, r) in ranks.iter().enumerate() {
        let _ = writeln!(
            text,
            "           {:<8}{:>12}{:>16}{:>10}{:>14}{}",
            format!("rank {rank}"),
            format!("{:.1} ms", 1e3 * r.step_seconds()),
            format!("{:.1}%", 100.0 * r.communication()),
            format!("{:.1}%", 100.0 * r.waiting()),
            r.resident.map_or("unknown".into(), show_bytes),
            if r.resident.is_some() && !r.resident_agrees { "   NOT AS PREDICTED" } else { "" }
        );
    }
    let _ = writeln!(
        text,
        "           imbalance {:.2}: the slowest rank's own computing over the mean",
        imbalance(ranks)
    );
    text
}

/// All ranks as JSON.
pub(crate) fn to_json(ranks: &[Account]) -> Value {
    ranks.iter().enumerate().map(|(rank, r)| r.to_json(rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn account(total: u64, inside: u64, waiting: u64) -> Account {
        let mut spent = Spent::default();
        let before = Clock { inside: ms(5), waiting: ms(3) };
        let after = Clock { inside: ms(5 + inside), waiting: ms(3 + waiting) };
        spent.step(ms(total), before, after);
        Account {
            spent,
            resident: Some(7 << 20),
            resident_agrees: true,
            memory_equal: true,
            wire_equal: false,
        }
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for a in [account(10, 4, 1), Account { resident: None, ..account(1, 1, 1) }, Account::default()] {
            assert_eq!(Account::from_numbers(a.to_numbers()), a);
        }
    }

    #[test]
    fn imbalance_is_the_slowest_ranks_own_time_over_the_mean() {
        // 60 ms and 100 ms of their own: the first waits for the second.
        let ranks = [account(110, 50, 40), account(110, 10, 0)];
        assert!((imbalance(&ranks) - 1.25).abs() < 1e-12);
        assert_eq!(imbalance(&[Account::default()]), 1.0);
        let text = text(&ranks);
        assert!(text.contains("110.0 ms") && text.contains("45.5%") && text.contains("36.4%"), "{text}");
        assert!(text.contains("imbalance 1.25"), "{text}");
        assert_eq!(super::text(&ranks[..1]), "");
        assert_eq!(to_json(&ranks)[1]["waiting_share"], 0.0);
    }
}
