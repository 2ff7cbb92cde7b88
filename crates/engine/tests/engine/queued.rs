//! Operations that are carried out later, on queues, change nothing: the CPU's bits, its account, and no fault.

use super::common::{BUDGET, FOLDERS, Job, MODES, Reference, cases, cpu, families, jobs, settings, trace};
use super::predicted::measure;
use memwall_comm::{Call, Clock, CommError, Group, Groups, Pending, Solo, Traffic};
use memwall_engine::{Generator, Keep, Rank, Settings};
use memwall_layout::Axis;
use memwall_tensor::device::Memory;
use memwall_tensor::queued::{Queue, Queued};
use memwall_tensor::{Category, Description, Tensor};
use proptest::prelude::*;
use std::cell::RefCell;

fn queued(seed: u64) -> Queued {
    Queued::new(Description { threads: 2 }, BUDGET, seed).unwrap()
}

/// Some steps leave the CPU's bits behind, and no fault; then the account, block by block.
fn check(job: &Job, seed: u64) {
    let batches = [0, 1, 2].map(|k| job.batch(k));
    let device = queued(seed);
    let on_queues = trace(&mut job.rank(device.clone()), &batches);
    assert_eq!(device.faults(), [], "{job:?}");
    assert!(on_queues == trace(&mut job.on_cpu(), &batches), "{job:?}");
    assert_eq!(measure(queued(!seed), job, 2, true), measure(cpu(2), job, 2, true), "{job:?}");
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn operations_that_come_later_change_no_bit_and_no_block(job in jobs(), seed: u64) {
        check(&job, seed);
    }

    #[test]
    fn a_step_waits_for_the_device_once_at_its_end(job in jobs(), seed: u64) {
        let device = queued(seed);
        let mut rank = job.rank(device.clone());
        for k in 0..3 {
            let before = device.waits();
            job.batch(k).step(&mut rank).unwrap();
            prop_assert_eq!(device.waits(), before + 1);
            job.batch(!k).evaluate(&mut rank).unwrap();
            prop_assert_eq!(device.waits(), before + 2);
        }
    }
}

#[test]
fn operations_that_come_later_change_no_bit_in_any_family_and_mode() {
    for model in families() {
        for (mode, keep) in MODES.into_iter().zip([Keep::ALL, Keep::INPUT].into_iter().cycle()) {
            let settings = Settings { micro_batches: 2, keep, clip: Some(0.5), ..settings() };
            let job = Job { packed: true, ..Job::new(model.dropping([0.1, 0.2, 0.3]), settings) };
            check(&job.in_mode(mode), 7);
        }
    }
}

/// A group of one that carries its collectives out on the communication queue: they take the buffer's contents away,
/// and bring them back.
struct Beside {
    device: Queued,
    /// Where the contents are meanwhile.
    away: RefCell<Option<Tensor<Queued>>>,
    /// Whether `wait` lets the compute queue wait.
    waits: bool,
}

impl Group<Queued> for Beside {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn axes(&self) -> &[Axis] {
        &[]
    }
    fn start(&self, device: &Queued, call: Call<Queued>) -> Result<Pending<Queued>, CommError> {
        let mut buffer = call.into_buffer();
        let (shape, dtype, placements) = (buffer.shape(), buffer.dtype(), buffer.placements());
        let mut away = Tensor::new(&self.device, shape, dtype, placements, Category::Communication).unwrap();
        let beside = self.device.on(Queue::Communication);
        beside.wait_for(&self.device.mark());
        beside.copy(buffer.view().slice, away.view_mut().slice);
        beside.zero(buffer.view_mut().slice);
        beside.copy(away.view().slice, buffer.view_mut().slice);
        self.away.replace(Some(away));
        Solo.start(device, Call::AllReduce(buffer))
    }
    fn wait(&self, device: &Queued, pending: Pending<Queued>) -> Result<Call<Queued>, CommError> {
        if self.waits {
            self.device.wait_for(&self.device.on(Queue::Communication).mark());
            self.away.take();
        }
        Solo.wait(device, pending)
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn clock(&self) -> Clock {
        Clock::default()
    }
}

/// A rank whose collectives are carried out on the communication queue.
fn rank_beside(job: &Job, seed: u64, waits: bool) -> Rank<Queued> {
    let device = queued(seed);
    let group = Beside { device: device.clone(), away: RefCell::default(), waits };
    let groups = Groups { data: Box::new(group), ..Groups::solo() };
    let mut rank = Rank::new(device, groups, job.spec(), job.settings).unwrap();
    rank.initialize();
    rank
}

#[test]
fn collectives_on_a_queue_of_their_own_change_no_bit() {
    for seed in 0..10 {
        let job = Job::small(Settings { seed, micro_batches: 2, clip: Some(0.5), ..settings() });
        let batches = [0, 1, 2].map(|k| job.batch(k));
        let mut rank = rank_beside(&job, seed, true);
        assert!(trace(&mut rank, &batches) == trace(&mut job.on_cpu(), &batches));
        assert_eq!(rank.device().faults(), []);
    }
}

#[test]
#[should_panic(
    expected = "clip_factor on the compute queue may run before copy on the communication queue is done"
)]
fn a_collective_that_is_not_waited_for_is_found() {
    let job = Job::small(Settings { clip: Some(0.5), ..settings() });
    let _ = job.batch(0).step(&mut rank_beside(&job, 1, false));
}

#[test]
fn generation_on_queues_gives_the_same_logits() {
    for name in FOLDERS {
        let r = Reference::read(name);
        let ids = &r.tokens("input_ids", 0)[..16];
        let (mut on_cpu, mut on_queues) =
            (Generator::new(cpu(2), &r.spec, 16).unwrap(), Generator::new(queued(3), &r.spec, 16).unwrap());
        r.load(&mut on_cpu);
        r.load(&mut on_queues);
        for part in [&ids[..5], &ids[5..6], &ids[6..]] {
            assert_eq!(on_queues.read(part).unwrap(), on_cpu.read(part).unwrap());
        }
    }
}
