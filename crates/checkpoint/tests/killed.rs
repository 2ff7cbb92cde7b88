//! A process that is killed in mid-save, at every file operation one after the other: whatever is left, the last complete
//! checkpoint is found, whole, and the next save goes through.

mod common;

use memwall_checkpoint::{Disk, Operation, Pace, RunState, Store};
use memwall_comm::local::Fabric;
use memwall_engine::{MicroBatch, Part, Rank, Settings, Zero};
use memwall_layout::Mesh;
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ARENA: u64 = 64 << 20;
/// What a process that is to die is told: operations until then, ranks, folder.
const ORDER: &str = "MEMWALL_TEST_DIE_AFTER";

/// A disk that ends the process at operation number `at`; a write is half done then.
fn deadly(at: u64) -> Disk {
    let done = Arc::new(AtomicU64::new(0));
    Disk::with_hook(move |operation, path| {
        if done.fetch_add(1, Ordering::SeqCst) == at {
            if operation == Operation::Write
                && let Ok(file) = OpenOptions::new().write(true).open(path)
            {
                file.write_all_at(b"half", 0).unwrap();
            }
            let own = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &own]).status().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    })
}

/// Has ranks of ZeRO-1 train, save after the first step, and save after the second while they train on.
fn train(ranks: usize, root: &Path, first: &Disk, second: &Disk) {
    let spec = ModelSpec::new(ModelConfig::from_json(&common::config(8, 17, true)).unwrap());
    let settings = Settings { zero: Zero::One, snapshot: 4096, ..common::settings(1) };
    let fabric = Fabric::new(Mesh::data_parallel(1, ranks), ARENA, Duration::from_secs(20)).unwrap();
    fabric.threads(ARENA, |device, groups| {
        let mut rank = Rank::new(device, groups, spec.clone(), settings).unwrap();
        rank.initialize();
        for (step, disk) in [(1, first), (2, second)] {
            work(&mut rank);
            let store = Store::new(root, 1, disk.clone());
            let saving = store.begin(&mut rank, &state(step), Pace::Background).unwrap();
            work_again(&mut rank, step);
            saving.finish(&mut rank).unwrap();
        }
    });
}

fn work(rank: &mut Rank<Cpu>) {
    let own = rank.groups().data.rank() as i32;
    let mut load = |_: usize, b: &mut MicroBatch<'_>| {
        for (i, (t, g)) in b.tokens.iter_mut().zip(b.targets.iter_mut()).enumerate() {
            *t = (i as i32 * 5 + own) % 17;
            *g = (*t + 5) % 17;
        }
    };
    let valid = 8 * rank.groups().data.size() as u64;
    rank.step(&mut load, valid).unwrap();
}

/// While the first save goes on, nothing; while the second does, a step.
fn work_again(rank: &mut Rank<Cpu>, step: u64) {
    if step == 2 {
        work(rank);
    }
}

fn state(step: u64) -> RunState {
    RunState { step, samples: step, tokens: 8 * step, data: "d".into(), job: "j".into(), code: "c".into() }
}

/// The bits of a checkpoint, loaded on one device.
fn bits(root: &Path, step: u64) -> Vec<u32> {
    let mut rank = common::rank_of(&common::config(8, 17, true), 9);
    Store::new(root, 1, Disk::default()).load(step, &mut rank).unwrap();
    let parts = [Part::Weight, Part::FirstMoment, Part::SecondMoment];
    let ids = 0..rank.spec().params.len();
    let all = parts.into_iter().flat_map(|p| ids.clone().map(move |i| (p, ParamId(i))));
    all.flat_map(|(p, i)| rank.device().read_f32(rank.part(p, i))).map(f32::to_bits).collect()
}

// speculators PR #739, Lightning #688, metaseq #53
#[test]
fn metaseq_53_a_process_killed_at_any_operation_leaves_the_last_complete_checkpoint() {
    if let Ok(order) = std::env::var(ORDER) {
        let (at, rest) = order.split_once(' ').unwrap();
        let (ranks, root) = rest.split_once(' ').unwrap();
        return train(
            ranks.parse().unwrap(),
            Path::new(root),
            &Disk::default(),
            &deadly(at.parse().unwrap()),
        );
    }
    for ranks in [1, 2] {
        let whole = tempfile::tempdir().unwrap();
        train(ranks, whole.path(), &Disk::default(), &Disk::default());
        let second = bits(whole.path(), 2);
        let first = {
            // The first step's is gone by then: it is that of a process that died at once.
            let root = tempfile::tempdir().unwrap();
            assert!(die(0, ranks, root.path()));
            bits(root.path(), 1)
        };
        assert_ne!(first, second);
        let mut at = 0;
        loop {
            let root = tempfile::tempdir().unwrap();
            let died = die(at, ranks, root.path());
            let store = Store::new(root.path(), 1, Disk::default());
            let found = store.latest().unwrap().expect("a complete checkpoint is there");
            store.verify(found).unwrap();
            let expected = if found == 1 { &first } else { &second };
            assert!(bits(root.path(), found) == *expected, "{ranks} ranks, operation {at}");
            if !died {
                assert_eq!(found, 2);
                break;
            }
            // Whoever comes next saves over what is left.
            train(ranks, root.path(), &Disk::default(), &Disk::default());
            assert_eq!(store.latest().unwrap(), Some(2));
            at += 1;
        }
        assert!(at > 20 * ranks as u64, "a save has more than {at} operations");
    }
}

/// Whether the process died at that operation, or got through without coming so far.
fn die(at: u64, ranks: usize, root: &Path) -> bool {
    let test = "metaseq_53_a_process_killed_at_any_operation_leaves_the_last_complete_checkpoint";
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ORDER, format!("{at} {ranks} {}", root.display()))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}
