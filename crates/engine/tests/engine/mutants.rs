//! Is a step that leaves a collective out, does it twice or scales its result ever taken for a right one? Each collective of
//! each path's step is disturbed in turn, on all ranks alike: the engine must refuse, or the result must differ.

use super::common::{Job, Layout, Model, Outcome, settings, train_share};
use memwall_comm::{Call, Clock, Collective, CommError, Group, Groups, Pending, Traffic};
use memwall_engine::{Keep, Settings};
use memwall_layout::Axis;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, DType, SliceMut, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is done to a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Nothing: collectives are only counted.
    None,
    /// It gives back what it got.
    Skip,
    /// It is carried out twice, the second time on what the first made.
    Double,
    /// Its result is doubled.
    Rescale,
}

/// What the groups of one rank have in common.
#[derive(Debug)]
struct Plan {
    fault: Fault,
    /// Which collective of the rank is disturbed, over all of its groups.
    number: usize,
    started: AtomicUsize,
    hit: Mutex<Option<Collective>>,
}

/// A group that disturbs one of its rank's collectives.
struct Disturbed {
    group: Box<dyn Group<Cpu>>,
    plan: Arc<Plan>,
    /// Calls that were left out, waiting to be given back, and those to be changed, by what stands in for them.
    kept: Mutex<Vec<Call<Cpu>>>,
}

impl Disturbed {
    fn is_hit(&self, call: &Call<Cpu>) -> bool {
        let hit = self.plan.started.fetch_add(1, Ordering::Relaxed) == self.plan.number;
        if hit && self.plan.fault != Fault::None {
            *self.plan.hit.lock().unwrap() = Some(call.collective());
        }
        hit && self.plan.fault != Fault::None
    }
}

fn doubled(device: &Cpu, mut t: Tensor<Cpu>) -> Tensor<Cpu> {
    let into: SliceMut<'_, _> = t.view_mut().slice;
    match into.dtype() {
        DType::I64 => {
            let mut x = vec![0i64; into.len()];
            device.read(t.view().slice, bytemuck::cast_slice_mut(&mut x));
            x.iter_mut().for_each(|x| *x = x.wrapping_mul(2));
            device.write(t.view_mut().slice, bytemuck::cast_slice(&x));
        }
        _ => {
            let mut x = device.read_f32(t.view().slice);
            x.iter_mut().for_each(|x| *x *= 2.0);
            device.write(t.view_mut().slice, bytemuck::cast_slice(&x));
        }
    }
    t
}

/// What is gathered into says nothing before: where it happens to hold what it will, that is luck.
fn poisoned(device: &Cpu, call: Call<Cpu>) -> Call<Cpu> {
    match call {
        Call::AllGather { part: Some(part), mut whole } => {
            device.fill(whole.view_mut().slice, f32::NAN);
            Call::AllGather { part: Some(part), whole }
        }
        other => other,
    }
}

/// The same with its result doubled.
fn rescaled(device: &Cpu, call: Call<Cpu>) -> Call<Cpu> {
    match call {
        Call::AllReduce(t) => Call::AllReduce(doubled(device, t)),
        Call::AllGather { part, whole } => Call::AllGather { part, whole: doubled(device, whole) },
        Call::ReduceScatter { whole, part: None, accumulate } => {
            Call::ReduceScatter { whole: doubled(device, whole), part: None, accumulate }
        }
        Call::ReduceScatter { whole, part: Some(part), accumulate } => {
            Call::ReduceScatter { whole, part: Some(doubled(device, part)), accumulate }
        }
        other => other,
    }
}

/// Once more what has been done: a sum is summed again, a gather gathered again.
fn again(group: &dyn Group<Cpu>, call: Call<Cpu>) -> Option<Call<Cpu>> {
    let owed = |t: Tensor<Cpu>| {
        let sum = memwall_layout::Placement::Partial(memwall_layout::Reduction::Sum);
        let placed = group.axes().iter().fold(t.placements(), |p, axis| p.with(*axis, sum));
        t.placed(placed)
    };
    Some(match call {
        Call::AllReduce(t) => Call::AllReduce(owed(t)),
        // The other parts of the whole are still what they were: adding them once more counts them twice.
        Call::ReduceScatter { whole, part: Some(part), .. } => {
            Call::ReduceScatter { whole, part: Some(part), accumulate: true }
        }
        other => return Some(other).filter(|c| matches!(c, Call::AllGather { .. })),
    })
}

impl Group<Cpu> for Disturbed {
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
        if self.group.size() == 1 || !self.is_hit(&call) {
            return self.group.start(device, call);
        }
        match self.plan.fault {
            // All ranks leave it out: in its place something harmless goes round.
            Fault::Skip => {
                let pending = self.group.start(device, Call::Barrier)?;
                self.kept.lock().unwrap().push(poisoned(device, call));
                Ok(pending)
            }
            // Carried out at once, so that its result can be changed before it is given back.
            _ => {
                let done = self.group.carry_out(device, call)?;
                let changed = match self.plan.fault {
                    Fault::Double => match again(self.group.as_ref(), done) {
                        Some(call) => self.group.carry_out(device, call)?,
                        None => return Err(CommError::new(Collective::Barrier, 0, 1, "nothing to do twice")),
                    },
                    _ => rescaled(device, done),
                };
                let pending = self.group.start(device, Call::Barrier)?;
                self.kept.lock().unwrap().push(changed);
                Ok(pending)
            }
        }
    }
    fn wait(&self, device: &Cpu, pending: Pending<Cpu>) -> Result<Call<Cpu>, CommError> {
        let stands_in = pending.collective() == Collective::Barrier;
        let done = self.group.wait(device, pending)?;
        Ok(if stands_in { self.kept.lock().unwrap().remove(0) } else { done })
    }
    fn traffic(&self) -> Traffic {
        self.group.traffic()
    }
    fn clock(&self) -> Clock {
        self.group.clock()
    }
}

/// A layout's outcome with one collective disturbed, or why it was refused; how many collectives there were, and which it was.
fn disturbed(
    layout: Layout,
    job: &Job,
    fault: Fault,
    number: usize,
) -> (Result<Outcome, String>, usize, Option<Collective>) {
    let plans = Mutex::new(Vec::new());
    let wrap = |groups: Groups<Cpu>| {
        let plan = Arc::new(Plan { fault, number, started: AtomicUsize::new(0), hit: Mutex::default() });
        plans.lock().unwrap().push(plan.clone());
        let one = |group| {
            Box::new(Disturbed { group, plan: plan.clone(), kept: Mutex::default() }) as Box<dyn Group<Cpu>>
        };
        Groups {
            mesh: groups.mesh,
            rank: groups.rank,
            data: one(groups.data),
            shard: one(groups.shard),
            replicate: one(groups.replicate),
        }
    };
    let batches = [job.batch(0), job.batch(1)];
    let ranks = layout.on_ranks(job, wrap, |rank| train_share(rank, &batches, false));
    let plans = plans.into_inner().unwrap();
    let (count, hit) = (plans[0].started.load(Ordering::Relaxed), *plans[0].hit.lock().unwrap());
    let outcome: Result<Vec<_>, _> = ranks.into_iter().map(|r| r.map_err(|e| e.to_string())).collect();
    // Ranks that say different things are found by whoever compares them, which a job does.
    let said = outcome.and_then(|ranks| Layout::if_together(job, ranks));
    (said, count, hit)
}

#[test]
fn no_collective_that_is_left_out_doubled_or_rescaled_passes_for_a_right_one() {
    let settings = Settings {
        deterministic: true,
        micro_batch: 1,
        micro_batches: 8,
        clip: Some(0.4),
        keep: Keep::INPUT,
        ..settings()
    };
    for tied in [false, true] {
        let job = Job::new(Model { tied, ..Model::SMALL }, settings);
        for layout in Layout::of(4).into_iter().filter(|l| l.ranks() == 4 && (l.dp_shard != 4 || tied)) {
            let (right, count, _) = disturbed(layout, &job, Fault::None, 0);
            let right = right.unwrap();
            for number in 0..count {
                for fault in [Fault::Skip, Fault::Double, Fault::Rescale] {
                    let (said, _, hit) = disturbed(layout, &job, fault, number);
                    let Some(hit) = hit else { continue };
                    let survived = said.as_ref().is_ok_and(|o| *o == right);
                    let harmless = SURVIVORS.iter().any(|(f, c)| *f == fault && *c == hit);
                    assert!(
                        !survived || harmless,
                        "{fault:?} of {} number {number} of {count} is not noticed: {layout:?}",
                        hit.name()
                    );
                }
            }
        }
    }
}

/// What changes nothing: to gather twice what is gathered gives the same.
const SURVIVORS: [(Fault, Collective); 1] = [(Fault::Double, Collective::AllGather)];
