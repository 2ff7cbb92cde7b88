//! Waiting for other ranks: briefly spinning, then asleep, never for ever, and always able to say for whom and in what.

use super::board::{Board, SUPERVISOR};
use crate::Collective;
use memwall_tensor::{Moment, Phase};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// While asleep, how often a rank looks whether another has failed without a word, and whether its time is up.
const LOOK: Duration = Duration::from_millis(50);

/// A rank's place at the board. The groups of a rank share it; with the last of them the rank leaves.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) board: Arc<Board>,
    pub(super) rank: usize,
    world: usize,
    timeout: Duration,
    /// Looks before going to sleep: few where ranks have to share cores.
    spins: u32,
}

/// What a rank waits in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) collective: Collective,
    pub(super) number: u64,
}

/// Where a rank's program is, in a word.
pub(super) fn pack(moment: Moment) -> u64 {
    (moment.phase as u64 + 1) << 32 | moment.unit.map_or(0, |unit| u64::from(unit) + 1)
}

fn unpack(word: u64) -> String {
    let Some(phase) = (word >> 32).checked_sub(1).and_then(|p| Phase::ALL.get(p as usize)) else {
        return "before its first collective".into();
    };
    match word as u32 {
        0 => phase.name().into(),
        unit => format!("{}, unit {}", phase.name(), unit - 1),
    }
}

impl Waiting {
    fn pack(self, peer: usize) -> u64 {
        (self.number << 24) | (self.collective as u64) << 16 | (peer as u64 + 1)
    }

    fn unpack(word: u64) -> Option<(usize, Self)> {
        let peer = (word & 0xffff).checked_sub(1)? as usize;
        let collective = *Collective::ALL.get((word >> 16 & 0xff) as usize)?;
        Some((peer, Self { collective, number: word >> 24 }))
    }
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} number {}", self.collective.name(), self.number + 1)
    }
}

impl Seat {
    pub(super) fn new(board: Arc<Board>, rank: usize, world: usize, timeout: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { board, rank, world, timeout, spins: if world <= cores { 20_000 } else { 200 } }
    }

    /// Says where the program is.
    pub(super) fn at(&self, moment: Moment) {
        self.board.post(self.rank).moment.store(pack(moment), Ordering::Relaxed);
    }

    /// Stops all ranks, and gives the reason back.
    pub(super) fn fail(&self, reason: String) -> String {
        self.board.fail(self.rank, &reason);
        reason
    }

    /// Why nobody should go on, if one has failed.
    pub(super) fn failure(&self) -> Option<String> {
        let (who, reason) = self.board.failure()?;
        Some(match who {
            SUPERVISOR => reason,
            who if who == self.rank => format!("this rank had failed before: {reason}"),
            who => format!("rank {who} has failed: {reason}"),
        })
    }

    /// Waits until `ready`, which rank `peer` brings about. Adds the time to `waited`.
    ///
    /// # Errors
    /// A rank has failed, `peer` has ended, or time is up: then all ranks stop.
    pub(super) fn wait(
        &self,
        peer: usize,
        what: Waiting,
        waited: &Cell<Duration>,
        ready: impl Fn() -> bool,
    ) -> Result<(), String> {
        if ready() {
            return Ok(());
        }
        let begin = Instant::now();
        let waits = &self.board.post(self.rank).waits;
        waits.store(what.pack(peer), Ordering::Relaxed);
        let outcome = self.wait_longer(peer, what, begin, ready);
        // A rank that gives up goes on to say whom it has waited for: others may ask.
        if outcome.is_ok() {
            waits.store(0, Ordering::Relaxed);
        }
        waited.set(waited.get() + begin.elapsed());
        outcome
    }

    fn wait_longer(
        &self,
        peer: usize,
        what: Waiting,
        begin: Instant,
        ready: impl Fn() -> bool,
    ) -> Result<(), String> {
        for _ in 0..self.spins {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            // Whatever else has happened, what is there is there.
            let left = self.board.post(peer).left.load(Ordering::SeqCst) != 0;
            if ready() {
                return Ok(());
            }
            if let Some(reason) = self.failure() {
                return Err(reason);
            }
            if left {
                return Err(self.fail(format!(
                    "rank {} waits for rank {peer} in {what} ({}), but rank {peer} has ended",
                    self.rank,
                    self.moment_of(self.rank)
                )));
            }
            if begin.elapsed() >= self.timeout {
                return Err(self.fail(self.who_waits_for_whom(peer, what)));
            }
            let rest = self.timeout.saturating_sub(begin.elapsed()).max(Duration::from_millis(1));
            self.board.sleep(peer, LOOK.min(rest), &ready);
        }
    }

    fn moment_of(&self, rank: usize) -> String {
        unpack(self.board.post(rank).moment.load(Ordering::Relaxed))
    }

    /// "rank 0 has waited 30 s for rank 1 in ..., which ...".
    fn who_waits_for_whom(&self, mut peer: usize, what: Waiting) -> String {
        let seconds = self.timeout.as_secs_f64();
        let mut text = format!(
            "rank {} has waited {seconds} s for rank {peer} in {what} ({})",
            self.rank,
            self.moment_of(self.rank)
        );
        let mut seen = vec![self.rank];
        loop {
            let at = self.moment_of(peer);
            let Some((next, what)) = Waiting::unpack(self.board.post(peer).waits.load(Ordering::Relaxed))
            else {
                return text + &format!("; rank {peer} waits for nobody: it was last seen in {at}");
            };
            text += &format!("; rank {peer} waits for rank {next} in {what} ({at})");
            if next >= self.world || seen.contains(&next) {
                return text;
            }
            seen.push(peer);
            peer = next;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.board.fail(self.rank, "it panicked");
        }
        self.board.post(self.rank).left.store(1, Ordering::SeqCst);
        self.board.ring(self.rank);
    }
}
