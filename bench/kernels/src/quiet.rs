//! What other processes do to this machine meanwhile: nothing is timed beside them.

use crate::{Common, Fault};
use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// CPU seconds a second of other processes above which nothing is timed.
const LIMIT: f64 = 0.05;
/// Linux counts CPU time in hundredths of a second for programs, whatever it does inside.
const TICKS: f64 = 100.0;

/// Counts the CPU time of others, from when it is made.
pub(crate) struct Others {
    start: Instant,
    busy: u64,
    own: u64,
    own_processes: Vec<u32>,
}

impl Others {
    /// Others are all but this process and those.
    pub(crate) fn new(children: &[u32]) -> Self {
        let own_processes: Vec<u32> = [std::process::id()].iter().chain(children).copied().collect();
        Self { start: Instant::now(), busy: busy(), own: used(&own_processes), own_processes }
    }

    /// CPU seconds a second.
    pub(crate) fn cores(&self) -> f64 {
        let others = (busy() - self.busy).saturating_sub(used(&self.own_processes) - self.own);
        others as f64 / TICKS / self.start.elapsed().as_secs_f64()
    }
}

/// Returns when others leave the machine alone for a second.
///
/// # Errors
/// They do not within half a minute.
pub(crate) fn require(common: &Common) -> Result<(), Fault> {
    let mut cores = 0.0;
    for _ in 0..30 {
        if common.even_busy {
            return Ok(());
        }
        let others = Others::new(&[]);
        std::thread::sleep(Duration::from_secs(1));
        cores = others.cores();
        if cores <= LIMIT {
            return Ok(());
        }
    }
    Err(format!("other processes use {cores:.2} cores of this machine: what is timed now would mean nothing")
        .into())
}

/// Ticks that all cores were busy, those included that a hypervisor took away.
fn busy() -> u64 {
    let text = read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    fields.iter().take(8).enumerate().filter(|(i, _)| ![3, 4].contains(i)).map(|(_, ticks)| ticks).sum()
}

/// Ticks of these processes.
fn used(processes: &[u32]) -> u64 {
    processes
        .iter()
        .filter_map(|id| read_to_string(format!("/proc/{id}/stat")).ok())
        .map(|text| ticks(&text))
        .sum()
}

/// User and system time in a line of /proc/PID/stat, whose second field may have any character.
fn ticks(line: &str) -> u64 {
    let after_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_is_seen_as_its_own() {
        let line = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20";
        assert_eq!(ticks(line), 42);
        let others = Others::new(&[]);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        assert!(
            used(&others.own_processes) >= others.own + 10,
            "a third of a second of spinning is some ticks"
        );
        assert!(others.cores() < crate::cores() as f64 + 0.5);
    }
}
