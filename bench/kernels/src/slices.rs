//! Short slices of time, each between two loops of plain arithmetic that tell whether the machine ran at full speed.

use crate::Fault;
use memwall_cli::{figures, profile};
use memwall_tensor::Cpu;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A slice around which arithmetic is slower than this share of full speed does not count.
const SAG: f64 = 0.97;
/// Full speed is what this share of the last measurements of it do not exceed: the very best may be moments of a clock that
/// the machine does not keep up.
const FULL: f64 = 0.9;
/// So many of the last: some minutes, since a machine's clock may settle at another speed for longer. Both sides of a row
/// are measured in less.
const LAST: usize = 150;
/// Measurements of it to begin with, so that there is something to compare with.
const FIRST: usize = 20;
/// Rounds of a loop of arithmetic: about half a millisecond.
const ROUNDS: usize = 100_000;
/// Loops before and after a slice, of which the fastest tells: in the first, threads may still be waking up.
const LOOPS: usize = 8;

/// As many times the slices that are wanted may be tried, until so many count.
const PATIENCE: u32 = 8;

/// Watches the speed of the machine's threads.
pub(crate) struct Watch {
    device: Cpu,
    /// The last measurements, in their order.
    rates: VecDeque<f64>,
}

/// A slice that was timed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    /// Seconds of one call.
    pub(crate) seconds: f64,
    /// The slower of the rates of arithmetic before and after.
    rate: f64,
    /// Full speed as far as was known when its row was done.
    pub(crate) full: f64,
}

impl Timed {
    /// Whether the machine ran at full speed around it.
    fn counts(&self) -> bool {
        self.rate >= SAG * self.full
    }
}

impl Watch {
    /// Of so many threads.
    pub(crate) fn new(threads: usize) -> Result<Self, Fault> {
        let mut watch = Self { device: profile::device(threads, 0)?, rates: VecDeque::new() };
        for _ in 0..FIRST {
            watch.rate();
        }
        Ok(watch)
    }

    /// Full speed of arithmetic as far as is known by now, FLOP/s: the bound of every kernel.
    pub(crate) fn full(&self) -> f64 {
        let mut rates = Vec::from(self.rates.clone());
        rates.sort_by(f64::total_cmp);
        rates[((rates.len() - 1) as f64 * FULL) as usize]
    }

    fn rate(&mut self) -> f64 {
        let once = |_| {
            let start = Instant::now();
            let flops = self.device.multiply_adds(ROUNDS);
            flops as f64 / start.elapsed().as_secs_f64()
        };
        let rate = (0..LOOPS).map(once).fold(0.0, f64::max);
        self.rates.push_back(rate);
        if self.rates.len() > LAST {
            self.rates.pop_front();
        }
        rate
    }

    /// A slice, which returns the seconds of one call. Threads that wait busily for more work may do so for `pause`.
    pub(crate) fn slice(
        &mut self,
        pause: Duration,
        run: impl FnOnce() -> Result<f64, Fault>,
    ) -> Result<Timed, Fault> {
        let before = self.rate();
        let seconds = run()?;
        std::thread::sleep(pause);
        let rate = before.min(self.rate());
        Ok(Timed { seconds, rate, full: self.full() })
    }

    /// Has `turn` add a slice to each side's, until each has so many that count, or patience ends.
    pub(crate) fn enough(
        &mut self,
        wanted: u32,
        slices: &mut [Vec<Timed>],
        mut turn: impl FnMut(&mut Self, &mut [Vec<Timed>]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for _ in 0..PATIENCE * wanted {
            turn(self, slices)?;
            let full = self.full();
            slices.iter_mut().flatten().for_each(|slice| slice.full = full);
            let counts = |side: &Vec<Timed>| side.iter().filter(|s| s.counts()).count();
            if slices.iter().all(|side| counts(side) >= wanted as usize) {
                break;
            }
        }
        Ok(())
    }
}

/// Median of the slices that count, seconds, and how many these are.
pub(crate) fn median(slices: &[Timed]) -> (Option<f64>, usize) {
    let seconds: Vec<f64> = slices.iter().filter(|s| s.counts()).map(|s| s.seconds).collect();
    let n = seconds.len();
    (figures::median(seconds), n)
}

/// The slices in milliseconds, for people; those that do not count in brackets.
pub(crate) fn raw(slices: &[Timed]) -> String {
    let show = |s: &Timed| {
        let ms = 1e3 * s.seconds;
        if s.counts() { format!("{ms:.3}") } else { format!("({ms:.3})") }
    };
    slices.iter().map(show).collect::<Vec<_>>().join(" ")
}

/// Calls so often that the slice takes at least `time`; seconds of one call.
pub(crate) fn repeat(time: Duration, mut run: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    loop {
        run();
        calls += 1;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return elapsed.as_secs_f64() / f64::from(calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_beside_slow_arithmetic_does_not_count() {
        let mut watch = Watch::new(1).unwrap();
        // One moment of a faster clock, and some of a slower one.
        watch.rates = [&[50.0; 5][..], &[100.0; 30], &[130.0]].concat().into();
        assert_eq!(watch.full(), 100.0);
        let timed = |seconds, rate| Timed { seconds, rate, full: watch.full() };
        let slices = [timed(1.0, 99.0), timed(9.0, 96.0), timed(2.0, 98.0), timed(4.0, 100.0)];
        assert_eq!(median(&slices), (Some(2.0), 3));
        assert_eq!(median(&slices[..3]), (Some(1.5), 2));
        assert_eq!(median(&slices[1..2]), (None, 0));
        assert_eq!(raw(&slices[..2]), "1000.000 (9000.000)");
    }

    #[test]
    fn full_speed_is_that_of_the_last_minutes() {
        let mut watch = Watch::new(1).unwrap();
        watch.rates = vec![1e20; LAST].into();
        for _ in 0..LAST {
            watch.rate();
        }
        assert_eq!(watch.rates.len(), LAST);
        assert!(watch.full() < 1e20, "{} FLOP/s is a speed of long ago", watch.full());
    }
}
