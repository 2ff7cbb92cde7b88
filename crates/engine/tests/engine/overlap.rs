//! A log of collectives: each unit's is started before, and awaited after, another unit's compute.

use super::common::{Hook, Job, Layout, Model, settings, wrapped};
use memwall_comm::{Call, Collective, CommError, Group, Groups, Pending};
use memwall_engine::{Settings, Zero};
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

/// What has happened so far, and the places in it of what is under way, in order.
#[derive(Default)]
struct Log {
    log: Mutex<Vec<Logged>>,
    under_way: Mutex<VecDeque<usize>>,
}

fn now(device: &Cpu) -> When {
    let moment = device.ledger().moment();
    When { phase: moment.phase, unit: moment.unit, computed: !moment.operation.is_empty() }
}

impl Hook for Log {
    fn start(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        call: Call<Cpu>,
    ) -> Result<Pending<Cpu>, CommError> {
        let mut log = self.log.lock().unwrap();
        self.under_way.lock().unwrap().push_back(log.len());
        let (collective, elements) = (call.collective(), call.size().0);
        log.push(Logged { collective, elements, started: now(device), awaited: None });
        drop(log);
        group.start(device, call)
    }

    fn wait(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        pending: Pending<Cpu>,
    ) -> Result<Call<Cpu>, CommError> {
        let mut under_way = self.under_way.lock().unwrap();
        let mut log = self.log.lock().unwrap();
        let is_it =
            |at: &usize| (log[*at].collective, log[*at].elements) == (pending.collective(), pending.size().0);
        let place = under_way.iter().position(is_it).expect("it was started");
        let at = under_way.remove(place).expect("it is there");
        log[at].awaited = Some(now(device));
        drop((log, under_way));
        group.wait(device, pending)
    }
}

/// The log of a step of a rank of two.
fn log(zero: Zero, tied: bool, layers: usize, micro_batches: usize) -> Vec<Logged> {
    let layout = match zero {
        Zero::None => Layout { dp_replicate: 2, dp_shard: 1, zero },
        _ => Layout { dp_replicate: 1, dp_shard: 2, zero },
    };
    let settings = Settings { micro_batches: 2 * micro_batches, ..settings() };
    let job = Job::new(Model { layers, tied, ..Model::SMALL }, settings);
    let logs = Mutex::new(Vec::new());
    let wrap = |groups: Groups<Cpu>| {
        let log = Arc::new(Log::default());
        if groups.rank == 0 {
            logs.lock().unwrap().push(log.clone());
        }
        wrapped(groups, &log)
    };
    let done = layout.on_ranks(&job, wrap, |rank| job.batch(0).step_of(rank).map(drop));
    done.into_iter().for_each(|d| d.unwrap());
    let logs = logs.into_inner().unwrap();
    logs[0].log.lock().unwrap().clone()
}

fn of(log: &[Logged], collective: Collective, phase: Phase) -> Vec<Logged> {
    log.iter().filter(|l| l.collective == collective && l.started.phase == phase).copied().collect()
}

#[test]
fn weights_are_sent_for_before_the_unit_before_them_computes_and_awaited_after() {
    for tied in [false, true] {
        let log = log(Zero::Three, tied, 5, 1);
        let gathers: Vec<Logged> =
            log.iter().filter(|l| l.collective == Collective::AllGather).copied().collect();
        // The first is waited for at once: nothing computes before it.
        for gather in &gathers[1..] {
            let (start, end) = (gather.started, gather.awaited.expect("it was waited for"));
            assert!(start.unit != end.unit && !end.computed, "{gather:?}");
            // Started as a unit's turn begins, before that unit has computed anything.
            assert!(!start.computed, "{gather:?}");
        }
        // Embedding, five blocks, head (its own and the table, if tied, which is there since the embedding), and backward all
        // blocks but the last two, which are there.
        assert_eq!(gathers.len(), 7 + 3);
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
            let log = log(zero, false, 5, micro_batches);
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
                let after = to + 2 <= from || to + 1 == from && end.computed || to == 0 || to > from;
                assert!(after, "{zero:?} {sum:?}");
                assert!(sum.elements > 0);
            }
        }
    }
}

#[test]
fn updated_weights_are_gathered_while_the_next_unit_is_updated() {
    for zero in [Zero::One, Zero::Two] {
        let log = log(zero, false, 5, 1);
        let gathers = of(&log, Collective::AllGather, Phase::Optimizer);
        assert_eq!(gathers.len(), 7, "{zero:?}");
        assert!(gathers.iter().all(|g| g.awaited.is_some()));
    }
}

/// A rank may have few collectives under way, however deep its model: the transport refuses more, and ranks would wait for
/// each other for ever.
#[test]
fn a_deep_model_has_no_more_collectives_under_way_than_a_flat_one() {
    for zero in Zero::ALL {
        for tied in [false, true] {
            let deep = log(zero, tied, 40, 2);
            assert!(deep.iter().all(|l| l.awaited.is_some()) && deep.len() > log(zero, tied, 5, 2).len());
        }
    }
}
