//! A log of collectives: each unit's is started before, and awaited after, another unit's compute.

use super::common::{Job, Layout, Model, settings};
use memwall_comm::{Call, Clock, Collective, CommError, Group, Groups, Pending, Traffic};
use memwall_engine::{Settings, Zero};
use memwall_layout::Axis;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, Phase};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// When a collective was started or awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct When {
    phase: Phase,
    unit: Option<u32>,
    /// Whether the unit had computed by then.
    computed: bool,
}

/// A collective of some elements.
#[derive(Debug, Clone, Copy)]
struct Logged {
    collective: Collective,
    elements: usize,
    started: When,
    awaited: Option<When>,
}

/// A group that keeps a log.
struct Log {
    group: Box<dyn Group<Cpu>>,
    log: Arc<Mutex<Vec<Logged>>>,
    /// Places in the log of what is under way, in order.
    under_way: Mutex<VecDeque<usize>>,
}

fn now(device: &Cpu) -> When {
    let moment = device.ledger().moment();
    When { phase: moment.phase, unit: moment.unit, computed: !moment.operation.is_empty() }
}

impl Group<Cpu> for Log {
    fn rank(&self) -> usize {
        self.group.rank()
    }
    fn size(&self) -> usize {
        self.group.size()
    }
    fn axes(&self) -> &[Axis] {
        self.group.axes()
    }
    fn start(&self, device: &Cpu, call: Call<Cpu>) -> Result<Pending<Cpu>, CommError> {
        let mut log = self.log.lock().unwrap();
        self.under_way.lock().unwrap().push_back(log.len());
        let (collective, elements) = (call.collective(), call.size().0);
        log.push(Logged { collective, elements, started: now(device), awaited: None });
        self.group.start(device, call)
    }
    fn wait(&self, device: &Cpu, pending: Pending<Cpu>) -> Result<Call<Cpu>, CommError> {
        let mut log = self.log.lock().unwrap();
        let mut under_way = self.under_way.lock().unwrap();
        let of_kind = |at: &usize| log[*at].collective == pending.collective();
        let place = under_way.iter().position(of_kind).expect("it was started");
        let at = under_way.remove(place).expect("it is there");
        log[at].awaited = Some(now(device));
        drop((log, under_way));
        self.group.wait(device, pending)
    }
    fn traffic(&self) -> Traffic {
        self.group.traffic()
    }
    fn clock(&self) -> Clock {
        self.group.clock()
    }
}

/// The log of the second step of a rank of two, of a model of five blocks.
fn log(zero: Zero, tied: bool, micro_batches: usize) -> Vec<Logged> {
    let layout = match zero {
        Zero::None => Layout { dp_replicate: 2, dp_shard: 1, zero },
        _ => Layout { dp_replicate: 1, dp_shard: 2, zero },
    };
    let settings = Settings { micro_batches: 2 * micro_batches, ..settings() };
    let job = Job::new(Model { layers: 5, tied, ..Model::SMALL }, settings);
    let logs = Mutex::new(Vec::new());
    let wrap = |groups: Groups<Cpu>| {
        let log = Arc::new(Mutex::new(Vec::new()));
        if groups.rank == 0 {
            logs.lock().unwrap().push(log.clone());
        }
        let one = |group| {
            let log = log.clone();
            Box::new(Log { group, log, under_way: Mutex::default() }) as Box<dyn Group<Cpu>>
        };
        Groups {
            mesh: groups.mesh,
            rank: groups.rank,
            data: one(groups.data),
            shard: one(groups.shard),
            replicate: one(groups.replicate),
        }
    };
    let done = layout.on_ranks(&job, wrap, |rank| {
        job.batch(0).step_of(rank)?;
        Ok(())
    });
    assert!(done.iter().all(Result::is_ok));
    let logs = logs.into_inner().unwrap();
    let log = logs[0].lock().unwrap().clone();
    log
}

fn of(log: &[Logged], collective: Collective, phase: Phase) -> Vec<Logged> {
    log.iter().filter(|l| l.collective == collective && l.started.phase == phase).copied().collect()
}

#[test]
fn weights_are_sent_for_before_the_unit_before_them_computes_and_awaited_after() {
    for tied in [false, true] {
        let log = log(Zero::Three, tied, 1);
        let gathers: Vec<Logged> =
            log.iter().filter(|l| l.collective == Collective::AllGather).copied().collect();
        // The first is waited for at once: nothing computes before it.
        for gather in &gathers[1..] {
            let (start, end) = (gather.started, gather.awaited.expect("it was waited for"));
            assert!(start.unit != end.unit && !end.computed, "{gather:?}");
            // Started as a unit's turn begins, before that unit has computed anything.
            assert!(!start.computed, "{gather:?}");
        }
        // Embedding, five blocks, head (with the tied table once more), and backward all blocks but the last, which is there.
        assert_eq!(gathers.len(), if tied { 8 + 4 } else { 7 + 4 });
    }
}

#[test]
fn gradients_are_summed_while_the_unit_after_them_computes() {
    for (zero, collective) in [
        (Zero::None, Collective::AllReduce),
        (Zero::One, Collective::ReduceScatter),
        (Zero::Two, Collective::ReduceScatter),
        (Zero::Three, Collective::ReduceScatter),
    ] {
        for micro_batches in [1, 3] {
            let log = log(zero, false, micro_batches);
            let sums = of(&log, collective, Phase::Backward);
            // Each micro-batch where a rank accumulates a part; else once a step.
            let times = if zero >= Zero::Two { micro_batches } else { 1 };
            assert_eq!(sums.len(), 7 * times, "{zero:?}");
            for sum in sums.iter().filter(|s| s.started.unit != Some(0)) {
                let (start, end) = (sum.started, sum.awaited.expect("it was waited for"));
                assert!(start.computed, "{sum:?}");
                let (from, to) = (start.unit.unwrap(), end.unit.unwrap_or(0));
                // By then the unit after it has computed: it is that one's turn to be summed, or the one after it begins.
                // The last ones of a micro-batch are awaited in the next.
                let after = to + 2 == from || to + 1 == from && end.computed || to == 0 || to > from;
                assert!(after, "{zero:?} {sum:?}");
                assert!(sum.elements > 0);
            }
        }
    }
}

#[test]
fn updated_weights_are_gathered_while_the_next_unit_is_updated() {
    for zero in [Zero::One, Zero::Two] {
        let log = log(zero, false, 1);
        let gathers = of(&log, Collective::AllGather, Phase::Optimizer);
        assert_eq!(gathers.len(), 7, "{zero:?}");
        assert!(gathers.iter().all(|g| g.awaited.is_some()));
    }
}
