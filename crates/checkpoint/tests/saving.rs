//! Checkpoints that are written while training goes on: they are what the state was when they began, training is what it would
//! have been without them, and it waits for no disk.

mod common;

use memwall_checkpoint::{CheckpointError, Disk, Operation, Pace, RunState, Store};
use memwall_comm::Groups;
use memwall_comm::local::Fabric;
use memwall_engine::{MicroBatch, Part, Rank, Settings, Zero};
use memwall_layout::Mesh;
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::queued::Queued;
use memwall_tensor::{Cpu, Description};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const ARENA: u64 = 64 << 20;

fn spec() -> ModelSpec {
    ModelSpec::new(ModelConfig::from_json(&common::config(8, 17, true)).unwrap())
}

/// A rank with room for so many bytes of a checkpoint.
fn rank_on<D: Device>(device: D, groups: Groups<D>, settings: Settings) -> Rank<D> {
    let mut rank = Rank::new(device, groups, spec(), settings).unwrap();
    rank.initialize();
    rank
}

fn settings(snapshot: u64) -> Settings {
    Settings { snapshot, ..common::settings(1) }
}

fn rank(snapshot: u64) -> Rank<Cpu> {
    let device = Cpu::new(Description { threads: 1 }, ARENA).unwrap();
    rank_on(device, Groups::solo(), settings(snapshot))
}

fn step<D: Device>(rank: &mut Rank<D>) -> u64 {
    let shift = rank.steps_done() as i32;
    let mut load = |_: usize, b: &mut MicroBatch<'_>| {
        for (i, (t, g)) in b.tokens.iter_mut().zip(b.targets.iter_mut()).enumerate() {
            *t = (i as i32 * 5 + shift) % 17;
            *g = (i as i32 * 5 + 5 + shift) % 17;
        }
    };
    rank.step(&mut load, 8).unwrap().loss.to_bits()
}

fn state<D: Device>(rank: &Rank<D>) -> RunState {
    let step = rank.steps_done();
    RunState { step, samples: step, tokens: 8 * step, data: "d".into(), job: "j".into(), code: "c".into() }
}

fn bits<D: Device>(rank: &Rank<D>) -> Vec<u32> {
    let parts = [Part::Weight, Part::FirstMoment, Part::SecondMoment];
    let ids = 0..rank.spec().params.len();
    let all = parts.into_iter().flat_map(|p| ids.clone().map(move |i| (p, ParamId(i))));
    all.flat_map(|(p, i)| rank.device().read_f32(rank.part(p, i))).map(f32::to_bits).collect()
}

/// What a checkpoint holds.
fn saved_bits(root: &Path, step: u64) -> Vec<u32> {
    let mut loaded = rank(0);
    Store::new(root, 9, Disk::default()).load(step, &mut loaded).unwrap();
    bits(&loaded)
}

/// A disk whose writes wait a little.
fn slow_disk() -> Disk {
    Disk::with_hook(|operation, _| {
        if operation == Operation::Write {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })
}

/// Bytes of a rank's state.
fn whole() -> u64 {
    let mut flat = 0;
    let layout = memwall_engine::FlatLayout::new(&spec(), 1);
    layout.units.iter().for_each(|unit| flat += 12 * unit.len as u64);
    flat
}

/// torchtitan issue 930: an asynchronous save saw later changes.
#[test]
fn tt_930_what_training_changes_after_the_call_is_not_in_the_file() {
    for room in [0, 4, whole() / 3, whole(), 2 * whole()] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), 9, slow_disk());
        let mut r = rank(room);
        let mut alone = rank(0);
        for _ in 0..4 {
            assert_eq!(step(&mut r), step(&mut alone), "a save changes nothing");
            let (before, saved) = (bits(&r), state(&r));
            let saving = store.begin(&mut r, &saved, Pace::Background).unwrap();
            for _ in 0..2 {
                assert_eq!(step(&mut r), step(&mut alone), "room for {room}");
            }
            saving.finish(&mut r).unwrap();
            assert!(saved_bits(dir.path(), saved.step) == before, "room for {room}, step {}", saved.step);
        }
        assert!(bits(&r) == bits(&alone));
    }
}

/// On a device that computes later, whoever reads without an order to it is found out.
#[test]
fn a_save_beside_training_is_ordered_on_a_device_with_queues() {
    for (seed, room) in [(1, 0), (2, whole() / 2), (3, whole())] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), 9, Disk::default());
        let device = Queued::new(Description { threads: 1 }, ARENA, seed).unwrap();
        let mut r = rank_on(device.clone(), Groups::solo(), settings(room));
        step(&mut r);
        let before = bits(&r);
        let saved = state(&r);
        let saving = store.begin(&mut r, &saved, Pace::Background).unwrap();
        step(&mut r);
        saving.finish(&mut r).unwrap();
        assert_eq!(device.faults(), []);
        assert!(saved_bits(dir.path(), 1) == before);
    }
}

/// torchtitan issue 1301: training stood still for as long as a slow save took.
#[test]
fn tt_1301_training_waits_for_no_disk_where_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    // The disk hangs until the steps are done.
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(Some(wait));
    let disk = Disk::with_hook(move |operation, _| {
        if operation == Operation::Write
            && let Some(wait) = wait.lock().unwrap().take()
        {
            wait.recv().map_err(io::Error::other)?;
        }
        Ok(())
    });
    let store = Store::new(dir.path(), 9, disk);
    let mut r = rank(whole());
    step(&mut r);
    let (before, saved) = (bits(&r), state(&r));
    let mut saving = store.begin(&mut r, &saved, Pace::Background).unwrap();
    for _ in 0..3 {
        step(&mut r);
        saving.check().unwrap();
    }
    assert!(!saving.is_over() && store.latest().unwrap().is_none());
    go_on.send(()).unwrap();
    saving.finish(&mut r).unwrap();
    assert!(saved_bits(dir.path(), 1) == before);
}

#[test]
fn the_room_is_reserved_at_start_and_no_step_takes_more() {
    let [without, with] = [0, whole()].map(|room| {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), 9, slow_disk());
        let mut r = rank(room);
        step(&mut r);
        let peak = r.device().ledger().state().at_peak.total();
        let saved = state(&r);
        let saving = store.begin(&mut r, &saved, Pace::Background).unwrap();
        step(&mut r);
        saving.finish(&mut r).unwrap();
        assert_eq!(r.device().ledger().state().at_peak.total(), peak);
        peak
    });
    assert_eq!(with - without, whole());
}

/// PyTorch issue 170163: asynchronous saves leaked.
#[test]
fn pt_170163_a_hundred_saves_take_flat_memory() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let mut r = rank(whole());
    let mut after = Vec::new();
    let mut ledger = Vec::new();
    for _ in 0..100 {
        step(&mut r);
        let saved = state(&r);
        let saving = store.begin(&mut r, &saved, Pace::Background).unwrap();
        step(&mut r);
        saving.finish(&mut r).unwrap();
        after.push(resident());
        ledger.push(r.device().ledger().state().live);
    }
    assert!(ledger.iter().all(|live| *live == ledger[0]));
    // Other tests of this process run at the same time; a leak of one state a save would be twenty times this.
    assert!(after[99] < after[20] + (4 << 20), "{} and {}", after[20], after[99]);
    assert_eq!(store.steps().unwrap().len(), 2);
}

/// A disk on which a write fails from operation number `at` on.
fn full_disk(at: u64) -> Disk {
    let done = AtomicU64::new(0);
    Disk::with_hook(move |operation, _| match operation {
        Operation::Write | Operation::MakeFile if done.fetch_add(1, Ordering::Relaxed) >= at => {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        _ => Ok(()),
    })
}

#[test]
fn a_disk_that_is_full_in_mid_save_is_told_and_leaves_the_checkpoint_before_and_no_files() {
    for at in [0, 1, 5, 30] {
        let dir = tempfile::tempdir().unwrap();
        let healthy = Store::new(dir.path(), 2, Disk::default());
        let mut r = rank(whole());
        step(&mut r);
        let before = bits(&r);
        let saved = state(&r);
        healthy.save(&mut r, &saved).unwrap();
        step(&mut r);
        let saved = state(&r);
        let saving =
            Store::new(dir.path(), 2, full_disk(at)).begin(&mut r, &saved, Pace::Background).unwrap();
        step(&mut r);
        let e = saving.finish(&mut r).unwrap_err().to_string();
        assert!(e.contains("safetensors") && e.contains("cannot"), "{e}");
        assert_eq!(healthy.latest().unwrap(), Some(1));
        assert!(saved_bits(dir.path(), 1) == before);
        let left = std::fs::read_dir(dir.path().join("step-00000002")).unwrap().count();
        assert_eq!(left, 0, "what was written is deleted, so that the disk is not full any more");
        // The next save is as if nothing had been.
        let saved = state(&r);
        healthy.save(&mut r, &saved).unwrap();
        assert_eq!(healthy.steps().unwrap(), [1, 3]);
    }
}

#[test]
fn a_save_that_is_given_up_is_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut r = rank(0);
    step(&mut r);
    let saved = state(&r);
    drop(Store::new(dir.path(), 2, slow_disk()).begin(&mut r, &saved, Pace::Background).unwrap());
    assert_eq!(Store::new(dir.path(), 2, Disk::default()).latest().unwrap(), None);
    step(&mut r);
}

/// What two ranks of ZeRO-3 come to that save while they train, each on its own disk.
fn together(
    root: &Path,
    patience: Duration,
    disk: impl Fn(usize) -> Disk + Sync,
) -> Vec<Result<(), CheckpointError>> {
    let mesh = Mesh::data_parallel(1, 2);
    let fabric = Fabric::new(mesh, ARENA, Duration::from_secs(20)).unwrap();
    fabric.threads(ARENA, |device, groups| {
        let number = groups.rank;
        let mut r = rank_on(device, groups, Settings { zero: Zero::Three, ..settings(whole()) });
        step(&mut r);
        let saved = state(&r);
        let store = Store::new(root, 2, disk(number)).patient(patience);
        let outcome = store.begin(&mut r, &saved, Pace::Background).and_then(|saving| {
            step(&mut r);
            saving.finish(&mut r).map(drop)
        });
        if let Err(e) = &outcome {
            fabric.fail_rank(number, &e.to_string());
        }
        outcome
    })
}

/// transformers pull request 48569: a save hung for ten minutes where only one rank had come.
#[test]
fn hf_pr_48569_a_save_finishes_whatever_rank_is_slow_and_who_cannot_join_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let slow = |rank: usize| if rank == 1 { slow_disk() } else { Disk::default() };
    let said = together(dir.path(), Duration::from_secs(20), slow);
    assert!(said.iter().all(Result::is_ok), "{said:?}");
    assert_eq!(Store::new(dir.path(), 2, Disk::default()).latest().unwrap(), Some(1));

    // One whose disk hangs for longer than anyone waits.
    let dir = tempfile::tempdir().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let hangs = |rank: usize| {
        let over = over.clone();
        Disk::with_hook(move |operation, _| {
            let begin = Instant::now();
            while rank == 1
                && operation == Operation::Write
                && !over.load(Ordering::Relaxed)
                && begin.elapsed() < Duration::from_secs(3)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            if rank == 1 && operation == Operation::Write {
                over.store(true, Ordering::Relaxed);
            }
            Ok(())
        })
    };
    let said = together(dir.path(), Duration::from_secs(1), hangs);
    let first = said[0].as_ref().unwrap_err().to_string();
    assert!(first.contains("the rank that writes weights-00002-of-00002.safetensors"), "{first}");
    assert!(said[1].is_err());
    assert_eq!(Store::new(dir.path(), 2, Disk::default()).latest().unwrap(), None);
}

#[test]
fn a_rank_whose_disk_fails_stops_the_save_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |rank: usize| if rank == 1 { full_disk(3) } else { Disk::default() };
    let begin = Instant::now();
    let said = together(dir.path(), Duration::from_secs(2), fails);
    assert!(said.iter().all(Result::is_err), "{said:?}");
    assert!(said[1].as_ref().unwrap_err().to_string().contains("cannot write to"), "{said:?}");
    assert!(begin.elapsed() < Duration::from_secs(15));
    assert_eq!(Store::new(dir.path(), 2, Disk::default()).latest().unwrap(), None);
}
