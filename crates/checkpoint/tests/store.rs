//! Checkpoints of a small run: whole or not there, whatever happens in mid-save; and damage is found.

mod common;

use memwall_checkpoint::{CheckpointError, Disk, Manifest, Operation, RunState, Store};
use memwall_engine::{MicroBatch, Part, Precision, Rank};
use memwall_model::ParamId;
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn rank(hidden: usize, seed: u64) -> Rank<Cpu> {
    common::rank(hidden, 17, seed)
}

fn step(rank: &mut Rank<Cpu>) -> f64 {
    let shift = rank.steps_done() as i32;
    let mut load = |_: usize, b: &mut MicroBatch<'_>| {
        for (i, (t, g)) in b.tokens.iter_mut().zip(b.targets.iter_mut()).enumerate() {
            *t = (i as i32 * 5 + shift) % 17;
            *g = (i as i32 * 5 + 5 + shift) % 17;
        }
    };
    rank.step(&mut load, 8).unwrap().loss
}

fn state(rank: &Rank<Cpu>) -> RunState {
    let step = rank.steps_done();
    RunState { step, samples: step, tokens: 8 * step, data: "d".into(), job: "j".into(), code: "c".into() }
}

fn save(store: &Store, rank: &mut Rank<Cpu>) -> Result<PathBuf, CheckpointError> {
    let state = state(rank);
    store.save(rank, &state)
}

fn bits(rank: &Rank<Cpu>) -> Vec<u32> {
    let parts = [Part::Weight, Part::FirstMoment, Part::SecondMoment];
    let ids = 0..rank.spec().params.len();
    let all = parts.into_iter().flat_map(|p| ids.clone().map(move |i| (p, ParamId(i))));
    all.flat_map(|(p, i)| rank.device().read_f32(rank.part(p, i))).map(f32::to_bits).collect()
}

/// Saves a rank after two steps, loads it into another one, and takes three more steps with both.
fn goes_on_to_the_bit(precision: Precision) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let rank = |seed| common::rank_in(&common::config(8, 17, false), seed, precision);
    let mut a = rank(1);
    step(&mut a);
    step(&mut a);
    save(&store, &mut a).unwrap();
    let mut b = rank(2);
    assert_eq!(store.load(store.latest().unwrap().unwrap(), &mut b).unwrap(), state(&a));
    assert_eq!(bits(&a), bits(&b));
    for _ in 0..3 {
        assert_eq!(step(&mut a).to_bits(), step(&mut b).to_bits());
    }
    assert_eq!(bits(&a), bits(&b));
}

// DeepSpeed #5822: a converted state did not load even in the same layout.
#[test]
fn ds_5822_a_loaded_rank_goes_on_to_the_bit() {
    goes_on_to_the_bit(Precision::F32);
}

// OpenTau #185: masters were rebuilt from bf16 weights.
#[test]
fn opentau_185_masters_are_stored_so_a_rank_in_bf16_goes_on_to_the_bit() {
    goes_on_to_the_bit(Precision::Bf16);
    let trained = {
        let mut r = common::rank_in(&common::config(8, 17, false), 1, Precision::Bf16);
        step(&mut r);
        r
    };
    let held_by_bf16 = bits(&trained).iter().filter(|b| *b & 0xffff == 0).count();
    assert!(held_by_bf16 < bits(&trained).len() / 2, "what is saved has more digits than bf16");
}

// PyTorch #113673: optimizer state was keyed by order.
#[test]
fn pt_113673_state_is_keyed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let mut a = rank(8, 1);
    step(&mut a);
    save(&store, &mut a).unwrap();
    for file in ["weights.safetensors", "optimizer.safetensors"] {
        let bytes = std::fs::read(dir.path().join("step-00000001").join(file)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let moments = if file.starts_with("opt") { 2 } else { 1 };
        assert_eq!(tensors.len(), moments * a.spec().params.len());
        for p in &a.spec().params {
            let of_it = tensors.names().into_iter().filter(|n| n.ends_with(&p.name)).count();
            assert!(of_it >= moments, "{file} has no state of {}", p.name);
        }
    }
}

#[test]
fn only_the_last_few_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let mut r = rank(8, 1);
    for _ in 0..4 {
        step(&mut r);
        save(&store, &mut r).unwrap();
    }
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["latest", "step-00000003", "step-00000004"]);
    let latest = std::fs::read_link(dir.path().join(Store::LATEST)).unwrap();
    assert_eq!(latest, Path::new("step-00000004"));
}

#[test]
fn every_so_often_one_is_kept_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 1, Disk::default()).keeping_every(Some(3));
    let mut r = rank(8, 1);
    for _ in 0..8 {
        step(&mut r);
        save(&store, &mut r).unwrap();
    }
    assert_eq!(store.steps().unwrap(), [3, 6, 8]);
}

/// A disk that dies at operation number `at`: that one and all later ones fail. A write that dies leaves half.
fn dying_disk(at: u64, done: Arc<AtomicU64>) -> Disk {
    Disk::with_hook(move |operation, path| {
        if done.fetch_add(1, Ordering::Relaxed) < at {
            return Ok(());
        }
        if operation == Operation::Write && done.load(Ordering::Relaxed) == at + 1 {
            use std::io::Write;
            std::fs::OpenOptions::new().append(true).open(path)?.write_all(b"half")?;
        }
        Err(io::Error::other("the power is gone"))
    })
}

// speculators PR #739, Lightning #688, metaseq #53
#[test]
fn metaseq_53_killed_at_any_operation_resume_takes_the_last_complete_checkpoint() {
    let mut operations = 0;
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let healthy = Store::new(dir.path(), 1, Disk::default());
        let mut r = rank(8, 1);
        step(&mut r);
        save(&healthy, &mut r).unwrap();
        let before = bits(&r);
        step(&mut r);
        let done = Arc::new(AtomicU64::new(0));
        let dying = Store::new(dir.path(), 1, dying_disk(at, done.clone()));
        let outcome = save(&dying, &mut r);
        let found = healthy.latest().unwrap().expect("a complete checkpoint survives");
        let mut loaded = rank(8, 9);
        healthy.load(found, &mut loaded).unwrap();
        assert_eq!(bits(&loaded), if found == 1 { before } else { bits(&r) }, "killed at operation {at}");
        // The next save cleans up whatever was left.
        step(&mut loaded);
        step(&mut loaded);
        save(&healthy, &mut loaded).unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != Store::LATEST).collect();
        assert_eq!(left.len(), 1, "killed at operation {at}: {left:?}");
        if outcome.is_ok() {
            operations = at;
            break;
        }
    }
    assert!(operations > 15, "a save takes more than {operations} operations");
}

fn saved() -> (tempfile::TempDir, Store, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 1, Disk::default());
    let mut r = rank(8, 1);
    step(&mut r);
    let folder = save(&store, &mut r).unwrap();
    (dir, store, folder)
}

fn damaged(damage: impl Fn(&Path)) -> CheckpointError {
    let (_dir, store, folder) = saved();
    damage(&folder);
    store.load(1, &mut rank(8, 1)).unwrap_err()
}

const FILES: [&str; 3] = ["manifest.json", "weights.safetensors", "optimizer.safetensors"];

#[test]
fn every_changed_byte_is_found_and_the_file_is_named() {
    let (_dir, store, folder) = saved();
    for name in FILES {
        let path = folder.join(name);
        let whole = std::fs::read(&path).unwrap();
        // Every byte of the manifest and of the headers, and one in each region of the tensors.
        let places = (0..whole.len().min(3000)).chain((3000..whole.len()).step_by(61));
        for at in places {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, bytes).unwrap();
            let e = store.verify(1).unwrap_err().to_string();
            assert!(e.contains(name) && e.contains("delete the folder"), "byte {at}: {e}");
        }
        std::fs::write(&path, whole).unwrap();
    }
    store.verify(1).unwrap();
}

#[test]
fn files_cut_off_lengthened_missing_or_strange_are_named() {
    for name in FILES {
        for length in [0, 1, 100, 1 << 20] {
            let e = damaged(|folder| {
                let file = std::fs::OpenOptions::new().write(true).open(folder.join(name)).unwrap();
                file.set_len(length).unwrap();
            });
            assert!(e.to_string().contains(name), "{e}");
        }
        let e = damaged(|folder| std::fs::remove_file(folder.join(name)).unwrap());
        assert!(e.to_string().contains(name), "{e}");
    }
    let e = damaged(|folder| std::fs::write(folder.join("extra.safetensors"), "").unwrap());
    assert!(e.to_string().contains("holds extra.safetensors, which is not part of the checkpoint"), "{e}");
}

#[test]
fn a_manifest_of_another_checkpoint_or_of_other_files_is_refused() {
    let with = |change: &dyn Fn(&mut Manifest)| {
        let e = damaged(|folder| {
            let mut manifest = Manifest::read(folder).unwrap();
            change(&mut manifest);
            std::fs::write(folder.join(Manifest::NAME), manifest.to_text().unwrap()).unwrap();
        });
        e.to_string()
    };
    let e = with(&|m| m.state.step = 2);
    assert!(e.contains("is of step 2, and stands in the folder of step 1"), "{e}");
    let e = with(&|m| m.format = 3);
    assert!(e.contains("has format 3; this version reads format 2"), "{e}");
    for name in ["../step-00000001/weights.safetensors", "/etc/passwd", "optimizer.safetensors", ""] {
        let e = with(&|m| m.files[0].name = name.into());
        assert!(e.contains("does not list the files of a checkpoint"), "{e}");
    }
    let e = with(&|m| drop(m.files.pop()));
    assert!(e.contains("does not list the files of a checkpoint"), "{e}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_names_and_shapes() {
    let (_dir, store, _) = saved();
    let e = store.load(1, &mut rank(16, 1)).unwrap_err().to_string();
    assert!(e.contains("model.embed_tokens.weight has shape [17, 8], not [17, 16]"), "{e}");
}

#[test]
fn a_hundred_saves_of_the_same_rank_leave_one_folder() {
    let (dir, store, _) = saved();
    let mut r = rank(8, 1);
    for _ in 0..100 {
        step(&mut r);
        save(&store, &mut r).unwrap();
    }
    assert_eq!(store.steps().unwrap(), [100]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the checkpoint, and the link to it");
}
