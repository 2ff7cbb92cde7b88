//! Which accesses are ordered: vector clocks over the two queues and the host (Fidge, 1988; Mattern, 1989).
//!
//! Whether an access is a race is decided when it is issued, from events and waits alone; luck has no part in it.

use std::collections::HashMap;
use std::fmt;
use thiserror::Error;

/// A first-in, first-out queue of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Where allocations, and the operations of a step, are carried out.
    Compute,
    /// Beside it, for collectives.
    Communication,
}

impl Queue {
    /// Both.
    pub const ALL: [Queue; 2] = [Queue::Compute, Queue::Communication];
}

/// Who accesses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// An operation of this queue.
    Queue(Queue),
    /// The program itself.
    Host,
}

impl Agent {
    fn index(self) -> usize {
        match self {
            Agent::Queue(queue) => queue as usize,
            Agent::Host => 2,
        }
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Agent::Queue(Queue::Compute) => "the compute queue",
            Agent::Queue(Queue::Communication) => "the communication queue",
            Agent::Host => "the host",
        })
    }
}

/// What a program did wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// Two accesses of one buffer, at least one of which changes it, that nothing orders.
    #[error("{operation} on {agent} may run before {other} on {other_agent} is done: no event orders them")]
    Race {
        /// The later of the two, as they were issued.
        operation: &'static str,
        /// Who carries it out.
        agent: Agent,
        /// The earlier.
        other: &'static str,
        /// Who carries that out.
        other_agent: Agent,
    },
    /// An operation met a buffer that was given back before its turn came.
    #[error("{operation} on {agent}: a buffer was given back before")]
    GivenBack {
        /// Name of the operation.
        operation: &'static str,
        /// Who carried it out.
        agent: Agent,
    },
    /// An operation panicked.
    #[error("{operation} on {agent}: {message}")]
    Panicked {
        /// Name of the operation.
        operation: &'static str,
        /// Who carried it out.
        agent: Agent,
        /// What it said.
        message: String,
    },
}

/// How many operations of each queue are over.
pub(super) type Clock = [u64; 2];

fn join(into: &mut Clock, other: Clock) {
    into.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(b));
}

#[derive(Debug, Clone, Copy)]
struct Access {
    operation: &'static str,
    queue: Queue,
    number: u64,
}

#[derive(Debug)]
struct Uses {
    written: Access,
    /// The last read by each queue since.
    read: [Option<Access>; 2],
}

/// The order of all that was issued.
#[derive(Debug, Default)]
pub(super) struct Order {
    issued: Clock,
    /// What is over before each agent's next access.
    seen: [Clock; 3],
    uses: HashMap<u64, Uses>,
    buffers: u64,
}

impl Order {
    /// Operations issued so far.
    pub(super) fn issued(&self) -> Clock {
        self.issued
    }

    /// What is over once a queue has done all that was issued on it.
    pub(super) fn at(&self, queue: Queue) -> Clock {
        self.seen[queue as usize]
    }

    /// Makes an agent's next access wait.
    pub(super) fn wait(&mut self, agent: Agent, until: Clock) {
        join(&mut self.seen[agent.index()], until);
    }

    /// Counts an operation of a queue; what the host waited for before it is over.
    pub(super) fn issue(&mut self, queue: Queue) {
        let host = self.seen[Agent::Host.index()];
        let seen = &mut self.seen[queue as usize];
        join(seen, host);
        self.issued[queue as usize] += 1;
        seen[queue as usize] = self.issued[queue as usize];
    }

    /// A number for a new buffer, which the operation just issued on `queue` makes.
    pub(super) fn create(&mut self, operation: &'static str, queue: Queue) -> u64 {
        self.buffers += 1;
        let written = Access { operation, queue, number: self.issued[queue as usize] };
        self.uses.insert(self.buffers, Uses { written, read: [None; 2] });
        self.buffers
    }

    /// An agent reads a buffer in the operation just issued.
    pub(super) fn read(&mut self, operation: &'static str, agent: Agent, buffer: u64) -> Option<Fault> {
        let number = self.number(agent);
        let fault = self.race(operation, agent, buffer, false);
        if let (Some(uses), Agent::Queue(queue)) = (self.uses.get_mut(&buffer), agent) {
            uses.read[queue as usize] = Some(Access { operation, queue, number });
        }
        fault
    }

    /// A queue changes a buffer in the operation just issued.
    pub(super) fn write(&mut self, operation: &'static str, queue: Queue, buffer: u64) -> Option<Fault> {
        let fault = self.race(operation, Agent::Queue(queue), buffer, true);
        let number = self.issued[queue as usize];
        if let Some(uses) = self.uses.get_mut(&buffer) {
            *uses = Uses { written: Access { operation, queue, number }, read: [None; 2] };
        }
        fault
    }

    /// A queue gives a buffer back in the operation just issued.
    pub(super) fn give_back(&mut self, operation: &'static str, queue: Queue, buffer: u64) -> Option<Fault> {
        let fault = self.race(operation, Agent::Queue(queue), buffer, true);
        self.uses.remove(&buffer);
        fault
    }

    fn number(&self, agent: Agent) -> u64 {
        match agent {
            Agent::Queue(queue) => self.issued[queue as usize],
            Agent::Host => 0,
        }
    }

    /// The first access that must be over before this one, and may not be.
    fn race(&self, operation: &'static str, agent: Agent, buffer: u64, changes: bool) -> Option<Fault> {
        let uses = self.uses.get(&buffer)?;
        let seen = self.seen[agent.index()];
        let reads = uses.read.iter().flatten().filter(|_| changes);
        let open = |a: &&Access| Agent::Queue(a.queue) != agent && seen[a.queue as usize] < a.number;
        std::iter::once(&uses.written).chain(reads).find(open).map(|other| Fault::Race {
            operation,
            agent,
            other: other.operation,
            other_agent: Agent::Queue(other.queue),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// An operation that reads the one buffer and changes the other.
        Run(Queue, u64, u64),
        Mark(Queue),
        /// Waits for the last marker.
        Wait(Agent),
        /// The host reads.
        Peek(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let queue = || prop::sample::select(&Queue::ALL[..]);
        let agent = prop_oneof![4 => queue().prop_map(Agent::Queue), 1 => Just(Agent::Host)];
        let step = prop_oneof![
            4 => (queue(), 1u64..=4, 1u64..=4).prop_map(|(q, a, b)| Step::Run(q, a, b)),
            3 => queue().prop_map(Step::Mark),
            3 => agent.prop_map(Step::Wait),
            1 => (1u64..=4).prop_map(Step::Peek),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// What is known to be over, written out: for each operation, the set of those before it.
    #[derive(Default)]
    struct Sets {
        /// Operations before the next of each agent.
        before: [Vec<usize>; 3],
        /// Each operation's queue, the buffer that it reads and the one that it changes.
        ran: Vec<(Queue, Option<u64>, u64)>,
        marked: Vec<usize>,
    }

    impl Sets {
        /// Whether an access races; `changes` or reads.
        fn races(&self, agent: Agent, buffer: u64, changes: bool) -> bool {
            let touches = |(_, read, written): &(Queue, Option<u64>, u64)| {
                *written == buffer || (changes && *read == Some(buffer))
            };
            let before = &self.before[agent.index()];
            self.ran.iter().enumerate().any(|(i, op)| touches(op) && !before.contains(&i))
        }

        fn run(&mut self, queue: Queue, read: Option<u64>, written: u64) {
            let host = self.before[2].clone();
            self.before[queue as usize].extend(host);
            self.before[queue as usize].push(self.ran.len());
            self.ran.push((queue, read, written));
        }
    }

    proptest! {
        #[test]
        fn the_first_race_is_found_where_sets_of_operations_say_it_is(steps in steps()) {
            let (mut order, mut sets) = (Order::default(), Sets::default());
            for _ in 0..4 {
                order.issue(Queue::Compute);
                let buffer = order.create("allocation", Queue::Compute);
                sets.run(Queue::Compute, None, buffer);
            }
            let mut marker = [0; 2];
            for step in steps {
                let (found, expected) = match step {
                    Step::Run(queue, from, to) => {
                        let agent = Agent::Queue(queue);
                        // What the host waited for is over before an operation that it issues now.
                        let host = sets.before[2].clone();
                        sets.before[queue as usize].extend(host);
                        let expected = sets.races(agent, from, false) || sets.races(agent, to, true);
                        order.issue(queue);
                        let read = order.read("read", agent, from);
                        let written = order.write("write", queue, to);
                        sets.run(queue, Some(from), to);
                        (read.or(written), expected)
                    }
                    Step::Mark(queue) => {
                        marker = order.at(queue);
                        sets.marked = sets.before[queue as usize].clone();
                        (None, false)
                    }
                    Step::Wait(agent) => {
                        order.wait(agent, marker);
                        let marked = sets.marked.clone();
                        sets.before[agent.index()].extend(marked);
                        (None, false)
                    }
                    Step::Peek(buffer) => {
                        let expected = sets.races(Agent::Host, buffer, false);
                        (order.read("peek", Agent::Host, buffer), expected)
                    }
                };
                prop_assert_eq!(found.is_some(), expected, "{:?} {:?}", step, found);
                if expected {
                    break;
                }
            }
        }
    }
}
