//! Is a step that leaves a collective out, does it twice or scales its result ever taken for a right one? Each collective of
//! each path's step is disturbed in turn, on all ranks alike: the engine must refuse, or the result must differ.

use super::common::{Hook, Job, Layout, Model, Outcome, settings, train_share, wrapped};
use memwall_comm::{Call, Collective, CommError, Group, Groups, Pending};
use memwall_engine::{Keep, Settings};
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

/// What is done to one collective of a rank.
#[derive(Debug)]
struct Disturbed {
    fault: Fault,
    /// Which of them, over all of the rank's groups.
    number: usize,
    started: AtomicUsize,
    hit: Mutex<Option<Collective>>,
    /// Calls that something else stands in for, to be given back.
    kept: Mutex<Vec<Call<Cpu>>>,
}

impl Disturbed {
    fn is_hit(&self, call: &Call<Cpu>) -> bool {
        let now = self.started.fetch_add(1, Ordering::Relaxed) == self.number;
        let hit = now && self.fault != Fault::None;
        if hit {
            *self.hit.lock().unwrap() = Some(call.collective());
        }
        hit
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

impl Hook for Disturbed {
    fn start(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        call: Call<Cpu>,
    ) -> Result<Pending<Cpu>, CommError> {
        if group.size() == 1 || !self.is_hit(&call) {
            return group.start(device, call);
        }
        // All ranks do the same: something harmless goes round in the place of what was left out, or was carried out at once
        // so that its result could be changed.
        let changed = match self.fault {
            Fault::Skip => poisoned(device, call),
            Fault::Double => {
                let done = group.carry_out(device, call)?;
                match again(group, done) {
                    Some(call) => group.carry_out(device, call)?,
                    None => return Err(CommError::new(Collective::Barrier, 0, 1, "nothing to do twice")),
                }
            }
            _ => rescaled(device, group.carry_out(device, call)?),
        };
        let pending = group.start(device, Call::Barrier)?;
        self.kept.lock().unwrap().push(changed);
        Ok(pending)
    }

    fn wait(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        pending: Pending<Cpu>,
    ) -> Result<Call<Cpu>, CommError> {
        let stands_in = pending.collective() == Collective::Barrier;
        let done = group.wait(device, pending)?;
        Ok(if stands_in { self.kept.lock().unwrap().remove(0) } else { done })
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
        let (started, hit, kept) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        let plan = Arc::new(Disturbed { fault, number, started, hit, kept });
        plans.lock().unwrap().push(plan.clone());
        wrapped(groups, &plan)
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
