//! A device for tests: the CPU's operations, carried out later on FIFO queues, as a GPU would.
//!
//! An operation returns as soon as it is issued. A thread for each queue carries operations out in order, on an inner
//! [`Cpu`], with pauses that a seed decides. Memory is that of a stream-ordered allocator: blocks are taken and given
//! back at once, as far as the ledger and its offsets are concerned, and on the compute queue in their turn; so the
//! inner device's arena repeats the ledger's events in the same order. What a block holds when it is taken is not a
//! number.
//!
//! What goes wrong on a GPU is told here as a [`Fault`], by the next [`Memory::read`], which panics, or by
//! [`Queued::faults`]: accesses on two queues, or by the host, that no event orders; a buffer that was given back while
//! an operation on another queue was to use it; a kernel that panicked. Accesses are told apart by buffer, not by part:
//! a buffer in flight belongs to its collective.

mod operations;
mod order;
mod worker;

pub use order::{Agent, Fault, Queue};

use crate::cpu::CpuBuf;
use crate::device::{Buffer, Memory};
use crate::ledger::Charge;
use crate::{ByCategory, Category, Cpu, DType, Description, Ledger, OutOfMemory, Slice, SliceMut};
use order::{Clock, Order};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use worker::{Delays, Job, Workshop, caught};

/// Not a number in f32 nor, in either half, in bf16; as an integer, far outside any table.
const POISON: [u8; 8] = [0xc0, 0x7f, 0xc0, 0x7f, 0xc0, 0x7f, 0xc0, 0x7f];

/// A device whose operations are carried out later. Clones share memory and queues; each issues on one queue.
#[derive(Debug, Clone)]
pub struct Queued {
    // Before the core, so that the working space goes first, as on the other devices.
    _scratch: Arc<Charge>,
    core: Arc<Core>,
    queue: Queue,
}

/// A buffer of [`Queued`]. Dropping it gives it back in its turn on the compute queue.
#[derive(Debug)]
pub struct QueuedBuf {
    charge: Option<Charge>,
    id: u64,
    len: usize,
    dtype: DType,
    core: Arc<Core>,
}

/// A point of a queue: all that was issued on it before.
#[derive(Debug, Clone, Copy)]
pub struct Marker(Clock);

/// Keeps operations from beginning until it is dropped.
#[derive(Debug)]
#[must_use = "operations go on when it is dropped"]
pub struct Hold(Arc<Core>);

#[derive(Debug)]
struct Core {
    ledger: Ledger,
    description: Description,
    waits: AtomicU64,
    workshop: Arc<Workshop>,
    issue: Mutex<Issue>,
    threads: Vec<JoinHandle<()>>,
}

/// Locked from deciding an operation's place in the order until it is in its queue.
#[derive(Debug)]
struct Issue {
    order: Order,
    queues: Option<[Sender<Job>; 2]>,
}

impl Issue {
    fn send(&self, queue: Queue, job: Job) {
        let queues = self.queues.as_ref().expect("queues are open while a device or a buffer lives");
        queues[queue as usize].send(job).expect("a queue's thread catches panics");
    }
}

/// A part of a buffer that an operation uses.
#[derive(Clone, Copy)]
struct Part {
    id: u64,
    start: usize,
    len: usize,
}

impl Queued {
    /// A device that computes with the threads of `description`, whose limit is `budget` bytes, and whose pauses `seed`
    /// decides. Operations are issued on the compute queue.
    ///
    /// # Errors
    /// The budget does not hold the device's own working space.
    ///
    /// # Panics
    /// When threads cannot be started.
    pub fn new(description: Description, budget: u64, seed: u64) -> Result<Self, OutOfMemory> {
        let ledger = Ledger::new(budget);
        let scratch = Arc::new(ledger.charge(description.scratch_bytes() as u64, Category::Workspace)?);
        let workshop = Arc::new(Workshop::new(Cpu::new(description, budget)?));
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        for queue in Queue::ALL {
            let (sender, jobs) = channel();
            senders.push(sender);
            let (workshop, delays) = (workshop.clone(), Delays::new(seed.wrapping_add(queue as u64)));
            threads.push(std::thread::spawn(move || workshop.work(queue, &jobs, delays)));
        }
        let queues = senders.try_into().ok();
        let core = Core {
            ledger,
            description,
            waits: AtomicU64::new(0),
            workshop,
            issue: Mutex::new(Issue { order: Order::default(), queues }),
            threads,
        };
        Ok(Self { _scratch: scratch, core: Arc::new(core), queue: Queue::Compute })
    }

    /// The same device, issuing on `queue`.
    #[must_use]
    pub fn on(&self, queue: Queue) -> Self {
        Self { queue, ..self.clone() }
    }

    /// Marks the place in this queue behind all that was issued on it.
    pub fn mark(&self) -> Marker {
        Marker(self.core.issue().order.at(self.queue))
    }

    /// What is issued on this queue from here on begins when what is before the marker is over.
    pub fn wait_for(&self, marker: &Marker) {
        let mut issue = self.core.issue();
        issue.order.wait(Agent::Queue(self.queue), marker.0);
        issue.order.issue(self.queue);
        issue.send(self.queue, Job::Wait(marker.0));
    }

    /// The host waits until what is before the marker is over.
    ///
    /// # Panics
    /// When the queues are held.
    pub fn host_waits_for(&self, marker: &Marker) {
        self.core.host_waits(marker.0);
    }

    /// Copies `src` to the host as it is now, and waits for nothing: what a peer sees that reads memory in place. A fault
    /// unless the host has waited for what wrote it; not a number, where it was not yet made.
    pub fn peek(&self, src: Slice<'_, QueuedBuf>, bytes: &mut [u8]) {
        let part = self.part(src.buf, src.start, src.len);
        self.core.peek(part.id, part.start, bytes);
    }

    /// Keeps operations from beginning, on both queues, until the result is dropped.
    pub fn hold(&self) -> Hold {
        self.core.workshop.hold(true);
        Hold(self.core.clone())
    }

    /// How often the host has waited for the device.
    pub fn waits(&self) -> u64 {
        self.core.waits.load(Ordering::Relaxed)
    }

    /// Waits for all that was issued; the faults since this was last asked. They are told once.
    pub fn faults(&self) -> Vec<Fault> {
        self.core.finish();
        self.core.workshop.faults()
    }

    fn part(&self, buf: &QueuedBuf, start: usize, len: usize) -> Part {
        assert!(Arc::ptr_eq(&buf.core, &self.core), "a buffer of another device");
        Part { id: buf.id, start, len }
    }

    /// Issues an operation.
    fn issue<const R: usize, const W: usize>(
        &self,
        operation: &'static str,
        reads: [Slice<'_, QueuedBuf>; R],
        writes: [SliceMut<'_, QueuedBuf>; W],
        run: impl FnOnce(&Cpu, [Slice<'_, CpuBuf>; R], [SliceMut<'_, CpuBuf>; W]) + Send + 'static,
    ) {
        let reads = reads.map(|s| self.part(s.buf, s.start, s.len));
        let writes = writes.map(|s| self.part(s.buf, s.start, s.len));
        let queue = self.queue;
        let mut issue = self.core.issue();
        issue.order.issue(queue);
        let read = reads.map(|p| issue.order.read(operation, Agent::Queue(queue), p.id));
        let written = writes.map(|p| issue.order.write(operation, queue, p.id));
        read.into_iter().chain(written).flatten().for_each(|f| self.core.workshop.blame(f));
        let job = move |cpu: &Cpu, store: &mut worker::Store| {
            if !reads.iter().chain(&writes).all(|p| store.contains_key(&p.id)) {
                return Err(Fault::GivenBack { operation, agent: Agent::Queue(queue) });
            }
            // Taken out, so that they can be changed while others are read.
            let mut taken = writes.map(|p| store.remove(&p.id).expect("it was there"));
            let outcome = caught(operation, queue, || {
                let reads = reads.map(|p| Slice { buf: &store[&p.id], start: p.start, len: p.len });
                let mut parts = taken.iter_mut().zip(&writes);
                let writes = std::array::from_fn(|_| {
                    let (buf, p) = parts.next().expect("as many buffers as parts");
                    SliceMut { buf, start: p.start, len: p.len }
                });
                run(cpu, reads, writes);
            });
            store.extend(writes.map(|p| p.id).into_iter().zip(taken));
            outcome
        };
        issue.send(queue, Job::Run(Box::new(job)));
    }
}

impl Core {
    fn issue(&self) -> MutexGuard<'_, Issue> {
        self.issue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host_waits(&self, until: Clock) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.workshop.wait(until);
        self.issue().order.wait(Agent::Host, until);
    }

    fn peek(&self, id: u64, start: usize, bytes: &mut [u8]) {
        let fault = self.issue().order.read("peek", Agent::Host, id);
        fault.into_iter().for_each(|f| self.workshop.blame(f));
        match self.workshop.store().get(&id) {
            Some(buf) => buf.read(start, bytes),
            None => bytes.iter_mut().zip(POISON.iter().cycle()).for_each(|(b, p)| *b = *p),
        }
    }

    /// Waits for all that was issued.
    fn finish(&self) {
        let issued = self.issue().order.issued();
        self.host_waits(issued);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.issue.get_mut().unwrap_or_else(PoisonError::into_inner).queues = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("a queue's thread catches panics");
        }
        let faults = self.workshop.faults();
        assert!(faults.is_empty() || std::thread::panicking(), "faults that nobody asked for: {faults:?}");
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.workshop.hold(false);
    }
}

impl Buffer for QueuedBuf {
    fn len(&self) -> usize {
        self.len
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    /// # Panics
    /// When there was a fault since faults were last asked for.
    fn read(&self, start: usize, bytes: &mut [u8]) {
        self.core.finish();
        self.core.peek(self.id, start, bytes);
        let faults = self.core.workshop.faults();
        assert!(faults.is_empty(), "{}", list(&faults));
    }
}

impl Drop for QueuedBuf {
    fn drop(&mut self) {
        const NAME: &str = "giving back";
        let id = self.id;
        let mut issue = self.core.issue();
        // At once for the ledger, in its turn for the memory.
        drop(self.charge.take());
        issue.order.issue(Queue::Compute);
        let fault = issue.order.give_back(NAME, Queue::Compute, id);
        fault.into_iter().for_each(|f| self.core.workshop.blame(f));
        let job = move |_: &Cpu, store: &mut worker::Store| {
            drop(store.remove(&id));
            Ok(())
        };
        issue.send(Queue::Compute, Job::Run(Box::new(job)));
    }
}

/// What an account says of bytes. Of moments only that at issue knows.
fn bytes_of(ledger: &Ledger) -> [ByCategory; 3] {
    let state = ledger.state();
    [state.live, state.peak_of_each, state.at_peak]
}

impl Memory for Queued {
    type Buf = QueuedBuf;

    fn alloc(&self, len: usize, dtype: DType, category: Category) -> Result<QueuedBuf, OutOfMemory> {
        const NAME: &str = "allocation";
        let mut issue = self.core.issue();
        let charge = self.core.ledger.charge((len * dtype.bytes()) as u64, category)?;
        let bytes = bytes_of(&self.core.ledger);
        issue.order.issue(Queue::Compute);
        let id = issue.order.create(NAME, Queue::Compute);
        let job = move |cpu: &Cpu, store: &mut worker::Store| {
            caught(NAME, Queue::Compute, || {
                let mut buf = cpu.alloc(len, dtype, category).expect("the ledger had room for it");
                assert_eq!(bytes_of(cpu.ledger()), bytes, "the account when it was issued");
                poison(cpu, &mut buf);
                store.insert(id, buf);
            })
        };
        issue.send(Queue::Compute, Job::Run(Box::new(job)));
        drop(issue);
        Ok(QueuedBuf { charge: Some(charge), id, len, dtype, core: self.core.clone() })
    }

    fn ledger(&self) -> &Ledger {
        &self.core.ledger
    }

    fn description(&self) -> Description {
        self.core.description
    }

    fn write(&self, dst: SliceMut<'_, QueuedBuf>, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.issue("write", [], [dst], move |cpu, [], [dst]| cpu.write(dst, &bytes));
    }

    fn copy(&self, src: Slice<'_, QueuedBuf>, dst: SliceMut<'_, QueuedBuf>) {
        self.issue("copy", [src], [dst], |cpu, [src], [dst]| cpu.copy(src, dst));
    }

    fn cast(&self, src: Slice<'_, QueuedBuf>, dst: SliceMut<'_, QueuedBuf>) {
        self.issue("cast", [src], [dst], |cpu, [src], [dst]| cpu.cast(src, dst));
    }

    fn zero(&self, dst: SliceMut<'_, QueuedBuf>) {
        self.issue("zero", [], [dst], |cpu, [], [dst]| cpu.zero(dst));
    }

    fn fill(&self, dst: SliceMut<'_, QueuedBuf>, value: f32) {
        self.issue("fill", [], [dst], move |cpu, [], [dst]| cpu.fill(dst, value));
    }

    fn fill_normal(&self, dst: SliceMut<'_, QueuedBuf>, key: u64, first: u64, std: f64) {
        self.issue("fill_normal", [], [dst], move |cpu, [], [dst]| cpu.fill_normal(dst, key, first, std));
    }
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Makes a new buffer useless: a fresh page is zero, and would hide an operation that forgets to begin with a zero.
fn poison(cpu: &Cpu, buf: &mut CpuBuf) {
    const ELEMENTS: usize = 4096;
    let bytes = POISON.repeat(ELEMENTS);
    let (len, size) = (buf.len(), buf.dtype().bytes());
    for start in (0..len).step_by(ELEMENTS) {
        let n = ELEMENTS.min(len - start);
        cpu.write(SliceMut { buf: &mut *buf, start, len: n }, &bytes[..n * size]);
    }
}
