//! A group of ranks that read each other's memory.

mod messages;

use super::board::{Entry, RING};
use super::said::{NONE, Said};
use super::watch::{Seat, Waiting};
use crate::group::Promise;
use crate::traffic::share;
use crate::{Call, Clock, Collective, CommError, Group, Pending, Traffic};
use memwall_layout::Axis;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, Region};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One rank's view of a group.
pub(super) struct LocalGroup {
    seat: Arc<Seat>,
    /// Of all ranks of the world.
    arenas: Vec<Arc<Region>>,
    kind: usize,
    axes: Vec<Axis>,
    /// The group's ranks, by their numbers in the world.
    members: Vec<usize>,
    rank: usize,
    /// Number of the next collective.
    next: Cell<u64>,
    /// Numbers of the next messages, to and from each member.
    messages: Vec<[Cell<u64>; 2]>,
    under_way: Arc<AtomicU64>,
    traffic: Cell<Traffic>,
    inside: Cell<Duration>,
    waiting: Cell<Duration>,
}

/// What this rank has published: the others count on it.
#[derive(Debug)]
struct Published {
    seat: Arc<Seat>,
    what: Waiting,
    under_way: Arc<AtomicU64>,
    kept: bool,
}

impl Promise for Published {
    fn keep(mut self: Box<Self>) {
        self.kept = true;
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        if !self.kept {
            let what = self.what;
            self.seat.board.fail(self.seat.rank, &format!("it gave up {what}, which it had started"));
        }
    }
}

/// A collective that is being waited for.
struct Ticket {
    said: Said,
    number: u64,
    collective: Collective,
}

impl LocalGroup {
    pub(super) fn new(
        seat: Arc<Seat>,
        arenas: Vec<Arc<Region>>,
        kind: usize,
        axes: Vec<Axis>,
        members: Vec<usize>,
    ) -> Self {
        let rank = members.iter().position(|m| *m == seat.rank).expect("a rank is in its groups");
        Self {
            seat,
            arenas,
            kind,
            axes,
            rank,
            next: Cell::new(0),
            messages: members.iter().map(|_| [Cell::new(0), Cell::new(0)]).collect(),
            members,
            under_way: Arc::default(),
            traffic: Cell::default(),
            inside: Cell::default(),
            waiting: Cell::default(),
        }
    }

    fn error(&self, collective: Collective, reason: impl Into<String>) -> CommError {
        CommError::new(collective, self.rank, self.members.len(), reason)
    }

    /// The others, from the next one on, so that not all read the same rank's memory at once.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.members.len());
        (1..size).map(move |i| (rank + i) % size)
    }

    fn entry(&self, member: usize, number: u64) -> &Entry {
        self.seat.board.entry(self.kind, self.members[member], number)
    }

    fn message(&self, from: usize, to: usize, number: u64) -> &Entry {
        self.seat.board.message(self.kind, self.members[from], self.members[to], number)
    }

    /// Waits until `word` of a member's entry says that it has come to collective `what`.
    fn until(&self, member: usize, what: Waiting, word: &AtomicU64) -> Result<(), CommError> {
        let ready = || word.load(Ordering::SeqCst) > what.number;
        let outcome = self.seat.wait(self.members[member], what, &self.waiting, ready);
        outcome.map_err(|reason| self.error(what.collective, reason))
    }

    /// What a member has published, once it has and it is the same collective.
    fn published(&self, member: usize, ticket: &Ticket) -> Result<Said, CommError> {
        let what = Waiting { collective: ticket.collective, number: ticket.number };
        let entry = self.entry(member, ticket.number);
        self.until(member, what, &entry.published)?;
        let theirs = Said::read(entry);
        if (theirs.kind, theirs.len) == (ticket.said.kind, ticket.said.len) {
            return Ok(theirs);
        }
        Err(self.mismatch(what, self.seat.rank, ticket.said, self.members[member], theirs))
    }

    fn mismatch(&self, what: Waiting, mine: usize, said: Said, other: usize, theirs: Said) -> CommError {
        let reason = format!(
            "ranks do not agree on collective number {}: rank {mine} does {}, rank {other} {}",
            what.number + 1,
            said.text(),
            theirs.text()
        );
        self.error(what.collective, self.seat.fail(reason))
    }

    /// Address of an offset in a member's arena.
    fn address(&self, member: usize, offset: u64, collective: Collective) -> Result<*const u8, CommError> {
        if offset == NONE {
            let reason =
                format!("the buffer of rank {} lies in memory that it does not share", self.members[member]);
            return Err(self.error(collective, self.seat.fail(reason)));
        }
        Ok(self.arenas[self.members[member]].at(offset as usize).cast_const())
    }

    /// Counts bytes that came from another rank.
    fn got(&self, collective: Collective, bytes: usize) {
        let mut traffic = self.traffic.get();
        traffic.bytes[collective as usize] += bytes as u64;
        self.traffic.set(traffic);
    }

    /// Reads `elements` of a member's buffer at `offset` into `to`.
    fn read(
        &self,
        device: &Cpu,
        member: usize,
        offset: u64,
        elements: std::ops::Range<usize>,
        to: memwall_tensor::SliceMut<'_, <Cpu as Memory>::Buf>,
        collective: Collective,
    ) -> Result<(), CommError> {
        let bytes = to.dtype().bytes();
        assert_eq!(elements.len(), to.len(), "elements to read");
        if elements.is_empty() {
            return Ok(());
        }
        let from = self.address(member, offset, collective)?.wrapping_add(elements.start * bytes);
        self.got(collective, elements.len() * bytes);
        // SAFETY: the member has published a buffer of at least these elements, and owns it until this rank has finished;
        // it is another rank's arena.
        unsafe { device.copy_from(to, from) };
        Ok(())
    }

    /// Sums `elements` of all members' buffers at their offsets into `to`.
    fn sum(
        &self,
        device: &Cpu,
        offsets: &[u64],
        elements: std::ops::Range<usize>,
        to: memwall_tensor::SliceMut<'_, <Cpu as Memory>::Buf>,
        accumulate: bool,
        collective: Collective,
    ) -> Result<(), CommError> {
        let bytes = to.dtype().bytes();
        let mut sources = Vec::with_capacity(offsets.len());
        for (member, offset) in offsets.iter().enumerate() {
            sources.push(self.address(member, *offset, collective)?.wrapping_add(elements.start * bytes));
        }
        self.got(collective, (offsets.len() - 1) * elements.len() * bytes);
        // SAFETY: each member has published a buffer of at least these elements, and writes none of them until this rank
        // has finished: a rank sums the elements of its own part alone.
        unsafe { device.sum_from(to, &sources, accumulate) };
        Ok(())
    }

    /// All members' publications of a collective.
    fn all_published(&self, ticket: &Ticket) -> Result<Vec<Said>, CommError> {
        let mut said = vec![ticket.said; self.members.len()];
        for member in self.others() {
            said[member] = self.published(member, ticket)?;
        }
        Ok(said)
    }

    /// Says that this rank is done with the others' memory, and waits until they are done with this rank's.
    fn finish(&self, ticket: &Ticket) -> Result<(), CommError> {
        self.entry(self.rank, ticket.number).finished.store(ticket.number + 1, Ordering::SeqCst);
        self.seat.board.ring(self.seat.rank);
        let what = Waiting { collective: ticket.collective, number: ticket.number };
        for member in self.others() {
            self.until(member, what, &self.entry(member, ticket.number).finished)?;
        }
        Ok(())
    }

    fn carry(&self, device: &Cpu, call: &mut Call<Cpu>, ticket: &Ticket) -> Result<(), CommError> {
        let (size, collective) = (self.members.len(), ticket.collective);
        match call {
            Call::AllReduce(buffer) => {
                let said = self.all_published(ticket)?;
                let (len, dtype) = (buffer.shape().len(), buffer.dtype());
                let own = share(len, dtype.bytes(), self.rank, size);
                let mut buffers = Vec::with_capacity(size);
                for (member, said) in said.iter().enumerate() {
                    let at = self.address(member, said.whole, collective)?;
                    buffers.push(at.wrapping_add(own.start * dtype.bytes()).cast_mut());
                }
                self.got(collective, 2 * (size - 1) * own.len() * dtype.bytes());
                // SAFETY: each member has published a buffer of as many elements and leaves this rank's share of it alone
                // until this rank has finished; the shares of two ranks have no element in common.
                unsafe { device.sum_among(own.len(), dtype, &buffers) };
            }
            Call::AllGather { part, whole } => {
                let n = whole.shape().len() / size;
                if let Some(part) = part {
                    device.copy(part.view().slice, whole.view_mut().slice.part(self.rank * n, n));
                }
                for member in self.others() {
                    let said = self.published(member, ticket)?;
                    let (offset, at) =
                        if said.part == NONE { (said.whole, member * n) } else { (said.part, 0) };
                    let to = whole.view_mut().slice.part(member * n, n);
                    self.read(device, member, offset, at..at + n, to, collective)?;
                }
            }
            Call::ReduceScatter { whole, part, accumulate } => {
                let offsets: Vec<u64> = self.all_published(ticket)?.iter().map(|s| s.whole).collect();
                let n = whole.shape().len() / size;
                let own = self.rank * n..(self.rank + 1) * n;
                let to = match part {
                    Some(part) => part.view_mut().slice,
                    None => whole.view_mut().slice.part(own.start, n),
                };
                self.sum(device, &offsets, own, to, *accumulate, collective)?;
            }
            Call::AllToAll { from, to } => {
                let n = from.shape().len() / size;
                device.copy(
                    from.view().slice.part(self.rank * n, n),
                    to.view_mut().slice.part(self.rank * n, n),
                );
                for member in self.others() {
                    let said = self.published(member, ticket)?;
                    let to = to.view_mut().slice.part(member * n, n);
                    let mine = self.rank * n..(self.rank + 1) * n;
                    self.read(device, member, said.whole, mine, to, collective)?;
                }
            }
            Call::Broadcast { root, buffer } => {
                let said = self.all_published(ticket)?;
                if *root != self.rank {
                    let n = buffer.shape().len();
                    self.read(device, *root, said[*root].whole, 0..n, buffer.view_mut().slice, collective)?;
                }
            }
            Call::Barrier => {
                self.all_published(ticket)?;
            }
            Call::Send { .. } | Call::Receive { .. } => unreachable!("messages have entries of their own"),
        }
        self.finish(ticket)
    }

    /// The number of the next collective or message, whose entry is free.
    fn number(&self, call: &Call<Cpu>) -> Result<u64, CommError> {
        let collective = call.collective();
        let counter = match call {
            Call::Send { to, .. } => &self.messages[*to][0],
            Call::Receive { from, .. } => &self.messages[*from][1],
            _ => &self.next,
        };
        let number = counter.get();
        if self.under_way.load(Ordering::Relaxed) >= RING as u64 {
            let reason = format!("{RING} collectives are under way already: wait for one of them");
            return Err(self.error(collective, reason));
        }
        // An entry's former use must be over for all who read it.
        if let Some(before) = number.checked_sub(RING as u64) {
            let what = Waiting { collective, number: before };
            let own = &self.entry(self.rank, number).finished;
            let message = matches!(call, Call::Send { .. } | Call::Receive { .. });
            if !message && own.load(Ordering::SeqCst) <= before {
                // The others may be waiting for this one: none would ever go on.
                let reason =
                    format!("number {} is under way still, and {RING} are as many as may be", before + 1);
                return Err(self.error(collective, self.seat.fail(reason)));
            }
            match call {
                Call::Send { to, .. } => {
                    self.until(*to, what, &self.message(self.rank, *to, number).finished)?;
                }
                Call::Receive { .. } => {}
                _ => {
                    for member in self.others() {
                        self.until(member, what, &self.entry(member, number).finished)?;
                    }
                }
            }
        }
        counter.set(number + 1);
        Ok(number)
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.inside.set(self.inside.get() + begin.elapsed());
        done
    }
}

impl Group<Cpu> for LocalGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn start(&self, device: &Cpu, call: Call<Cpu>) -> Result<Pending<Cpu>, CommError> {
        let collective = call.collective();
        call.check(self.rank, self.members.len(), &self.axes)?;
        self.seat.at(device.ledger().moment());
        if let Some(reason) = self.seat.failure() {
            return Err(self.error(collective, reason));
        }
        self.timed(|| {
            let number = self.number(&call)?;
            let said = Said::of(device, &call);
            match &call {
                Call::Send { to, .. } => said.write(self.message(self.rank, *to, number), number),
                Call::Receive { .. } => {}
                _ => said.write(self.entry(self.rank, number), number),
            }
            self.seat.board.ring(self.seat.rank);
            let mut traffic = self.traffic.get();
            traffic.count(collective, 0);
            self.traffic.set(traffic);
            self.under_way.fetch_add(1, Ordering::Relaxed);
            let (seat, under_way) = (self.seat.clone(), self.under_way.clone());
            let promise = Published { seat, what: Waiting { collective, number }, under_way, kept: false };
            Ok(Pending { call, number, promise: Some(Box::new(promise)) })
        })
    }

    fn wait(&self, device: &Cpu, pending: Pending<Cpu>) -> Result<Call<Cpu>, CommError> {
        let Pending { mut call, number, promise } = pending;
        let ticket = Ticket { said: Said::of(device, &call), number, collective: call.collective() };
        self.seat.at(device.ledger().moment());
        let outcome = self.timed(|| match call.collective() {
            Collective::Send | Collective::Receive => self.exchange(device, &mut call, &ticket),
            _ => self.carry(device, &mut call, &ticket),
        });
        // One that failed has stopped all ranks already.
        if let Some(promise) = promise {
            promise.keep();
        }
        outcome?;
        Ok(call.done(self.rank, self.members.len(), &self.axes))
    }

    fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    fn clock(&self) -> Clock {
        Clock { inside: self.inside.get(), waiting: self.waiting.get() }
    }
}
