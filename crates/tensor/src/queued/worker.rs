//! The threads behind the queues, and the buffers as they are when an operation's turn comes.

use super::order::{Agent, Clock, Fault, Queue};
use crate::Cpu;
use crate::cpu::CpuBuf;
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Buffers that exist at the moment of an operation, by number.
pub(super) type Store = HashMap<u64, CpuBuf>;

/// An operation with its operands.
type Operation = dyn FnOnce(&Cpu, &mut Store) -> Result<(), Fault> + Send;

/// What a queue carries out.
pub(super) enum Job {
    /// An operation.
    Run(Box<Operation>),
    /// Waits until this many operations of each queue are over.
    Wait(Clock),
}

#[derive(Debug, Default)]
struct Progress {
    done: Clock,
    /// While not zero, no operation begins.
    holds: usize,
    faults: Vec<Fault>,
}

/// What the queues' threads share.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) cpu: Cpu,
    store: Mutex<Store>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Panics of operations are caught where they are carried out, and nothing else here panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workshop {
    pub(super) fn new(cpu: Cpu) -> Self {
        Self { cpu, store: Mutex::default(), progress: Mutex::default(), changed: Condvar::new() }
    }

    /// The buffers as they are now.
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Keeps what is not yet begun from beginning, or lets it go on.
    pub(super) fn hold(&self, held: bool) {
        let mut progress = lock(&self.progress);
        if held {
            progress.holds += 1;
        } else {
            progress.holds -= 1;
        }
        self.changed.notify_all();
    }

    /// Remembers a fault.
    pub(super) fn blame(&self, fault: Fault) {
        lock(&self.progress).faults.push(fault);
    }

    /// Forgets the faults so far, and returns them.
    pub(super) fn faults(&self) -> Vec<Fault> {
        std::mem::take(&mut lock(&self.progress).faults)
    }

    /// Waits until this many operations of each queue are over.
    ///
    /// # Panics
    /// When the queues are held: this would wait for ever.
    pub(super) fn wait(&self, until: Clock) {
        let progress = lock(&self.progress);
        let over = |p: &Progress| p.done.iter().zip(until).all(|(done, until)| *done >= until);
        assert!(progress.holds == 0 || over(&progress), "the host waits for queues that it holds");
        drop(self.changed.wait_while(progress, |p| !over(p)));
    }

    /// Carries out one queue's jobs until there will be no more.
    pub(super) fn work(&self, queue: Queue, jobs: &Receiver<Job>, mut delays: Delays) {
        for job in jobs {
            delays.pause();
            drop(self.changed.wait_while(lock(&self.progress), |p| p.holds > 0));
            match job {
                Job::Run(run) => {
                    let outcome = run(&self.cpu, &mut self.store());
                    outcome.unwrap_or_else(|fault| self.blame(fault));
                }
                Job::Wait(until) => {
                    let over = |p: &Progress| {
                        Queue::ALL.iter().all(|q| *q == queue || p.done[*q as usize] >= until[*q as usize])
                    };
                    drop(self.changed.wait_while(lock(&self.progress), |p| !over(p)));
                }
            }
            lock(&self.progress).done[queue as usize] += 1;
            self.changed.notify_all();
        }
    }
}

/// Runs an operation, whose panic becomes a fault.
pub(super) fn caught(operation: &'static str, queue: Queue, run: impl FnOnce()) -> Result<(), Fault> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned();
        Fault::Panicked { operation, agent: Agent::Queue(queue), message }
    })
}

/// Seeded pauses between operations (xorshift64*, Marsaglia): the queues drift apart, and from the host.
pub(super) struct Delays(u64);

impl Delays {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    fn pause(&mut self) {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        match random % 16 {
            0 => std::thread::sleep(Duration::from_micros(random / 16 % 64)),
            1..=4 => std::thread::yield_now(),
            _ => {}
        }
    }
}
