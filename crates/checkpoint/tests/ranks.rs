//! Checkpoints that ranks save together: read back by any other layout, to the bit, and exported as one device's.

mod common;

use memwall_checkpoint::{Disk, Export, FloatType, RunState, Store, write_model};
use memwall_comm::local::Fabric;
use memwall_engine::{
    AdamWSettings, Decay, Keep, MicroBatch, Part, Precision, Rank, Schedule, Settings, Zero,
};
use memwall_layout::Mesh;
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::path::Path;
use std::time::Duration;

const BUDGET: u64 = 64 << 20;

/// Micro-batches of a step, whoever computes them.
const MICRO_BATCHES: usize = 12;

/// Replicas, ranks of a sharding group, and what these share.
type Layout = (usize, usize, Zero);

const LAYOUTS: [Layout; 8] = [
    (1, 1, Zero::None),
    (2, 1, Zero::None),
    (1, 2, Zero::One),
    (1, 2, Zero::Two),
    (1, 2, Zero::Three),
    (1, 3, Zero::Three),
    (2, 2, Zero::Three),
    (1, 6, Zero::One),
];

fn spec() -> ModelSpec {
    ModelSpec::new(ModelConfig::from_json(&common::config(8, 17, true)).unwrap())
}

/// Has each rank of a layout do `work`, and returns what they returned.
fn on<T: Send>(
    (replicas, parts, zero): Layout,
    precision: Precision,
    work: impl Fn(&mut Rank<Cpu>) -> T + Sync,
) -> Vec<T> {
    let mesh = Mesh::data_parallel(replicas, parts);
    let fabric = Fabric::new(mesh, BUDGET, Duration::from_secs(60)).unwrap();
    let settings = Settings {
        precision,
        gradients: precision,
        micro_batch: 1,
        micro_batches: MICRO_BATCHES / mesh.world(),
        sequence: 8,
        deterministic: true,
        zero,
        clip: Some(0.5),
        seed: 3,
        snapshot: 0,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 9, decay: Decay::Constant },
    };
    fabric.threads(BUDGET, |device, groups| {
        let mut rank = Rank::new(device, groups, spec(), settings).unwrap();
        rank.initialize();
        work(&mut rank)
    })
}

fn step(rank: &mut Rank<Cpu>) -> u64 {
    let first = rank.groups().data.rank() * rank.settings().micro_batches;
    let shift = rank.steps_done() as i32;
    let mut load = |micro: usize, b: &mut MicroBatch<'_>| {
        for (i, (t, g)) in b.tokens.iter_mut().zip(b.targets.iter_mut()).enumerate() {
            *t = ((i + 3 * (first + micro)) as i32 * 5 + shift) % 17;
            *g = (*t + 5) % 17;
        }
    };
    rank.step(&mut load, 8 * MICRO_BATCHES as u64).unwrap().loss.to_bits()
}

fn state(step: u64) -> RunState {
    RunState { step, samples: step, tokens: 8 * step, data: "d".into(), job: "j".into(), code: "c".into() }
}

/// The bits of all state that ranks hold together.
fn whole(ranks: &[Vec<(usize, Vec<f32>)>]) -> Vec<Vec<u32>> {
    let tensors = 3 * spec().params.len();
    (0..tensors)
        .map(|t| {
            let len = spec().params[t % spec().params.len()].shape.iter().product();
            let mut bits = vec![None; len];
            for (start, values) in ranks.iter().map(|rank| &rank[t]) {
                bits[*start..start + values.len()]
                    .iter_mut()
                    .zip(values)
                    .for_each(|(b, v)| *b = Some(v.to_bits()));
            }
            bits.into_iter().map(|b| b.expect("some rank holds it")).collect()
        })
        .collect()
}

/// What a rank holds of every part of every parameter.
fn held(rank: &Rank<Cpu>) -> Vec<(usize, Vec<f32>)> {
    let parts = [Part::Weight, Part::FirstMoment, Part::SecondMoment];
    let ids = (0..rank.spec().params.len()).map(ParamId);
    let all = parts.into_iter().flat_map(|part| ids.clone().map(move |p| (part, p)));
    all.map(|(part, p)| (rank.held(part, p).start, rank.device().read_f32(rank.part(part, p)))).collect()
}

/// Trains two steps, saves, and trains one more: its loss, and the state that was saved.
fn saved(layout: Layout, precision: Precision, folder: &Path) -> (u64, Vec<Vec<u32>>) {
    let ranks = on(layout, precision, |rank| {
        step(rank);
        step(rank);
        Store::new(folder, 2, Disk::default()).save(rank, &state(2)).unwrap();
        let held = held(rank);
        (step(rank), held)
    });
    let (losses, states): (Vec<u64>, Vec<_>) = ranks.into_iter().unzip();
    assert!(losses.iter().all(|l| *l == losses[0]));
    (losses[0], whole(&states))
}

/// Megatron issue 1517, radixark pull request 66: a checkpoint that was saved in one layout failed in another, and uneven
/// parameters were lost.
#[test]
fn mg_1517_a_checkpoint_of_any_layout_is_read_by_every_other_to_the_bit() {
    for precision in [Precision::F32, Precision::Bf16] {
        for from in LAYOUTS {
            let dir = tempfile::tempdir().unwrap();
            let (loss, state_then) = saved(from, precision, dir.path());
            for into in LAYOUTS {
                let ranks = on(into, precision, |rank| {
                    let store = Store::new(dir.path(), 2, Disk::default());
                    assert_eq!(store.load(2, rank).unwrap(), state(2));
                    rank.compare_state().unwrap();
                    let held = held(rank);
                    (step(rank), held)
                });
                let (losses, states): (Vec<u64>, Vec<_>) = ranks.into_iter().unzip();
                assert!(whole(&states) == state_then, "{from:?} to {into:?}");
                assert!(losses.iter().all(|l| *l == loss), "{from:?} to {into:?}");
            }
        }
    }
}

#[test]
fn an_export_of_shards_is_that_of_one_device_byte_by_byte() {
    let export = Export {
        dtype: FloatType::F32,
        max_shard_bytes: Export::USUAL_SHARD,
        end_of_document: None,
        generation_config: None,
    };
    let mut exports = Vec::new();
    for layout in [(1, 1, Zero::None), (1, 3, Zero::Three), (2, 2, Zero::Two)] {
        let dir = tempfile::tempdir().unwrap();
        saved(layout, Precision::Bf16, &dir.path().join("checkpoints"));
        let store = Store::new(dir.path().join("checkpoints"), 2, Disk::default());
        let saved = store.open(2).unwrap();
        write_model(&Disk::default(), &dir.path().join("export"), &mut &saved, &export).unwrap();
        exports.push(std::fs::read(dir.path().join("export/model.safetensors")).unwrap());
    }
    assert!(exports.iter().all(|e| *e == exports[0]));
}

/// DeepSpeed issue 6691: what was missing was not noticed, and the loss began as if untrained.
#[test]
fn a_part_that_is_missing_or_of_another_checkpoint_is_named() {
    let dir = tempfile::tempdir().unwrap();
    saved((1, 3, Zero::Three), Precision::F32, dir.path());
    let folder = dir.path().join("step-00000002");
    let part = folder.join("optimizer-00002-of-00003.safetensors");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::remove_file(&part).unwrap();
    let load = || {
        let said = on((1, 1, Zero::None), Precision::F32, |rank| {
            Store::new(dir.path(), 2, Disk::default()).load(2, rank).map_err(|e| e.to_string())
        });
        said.into_iter().next().unwrap().unwrap_err()
    };
    assert!(load().contains("optimizer-00002-of-00003.safetensors"), "{}", load());
    let mut flipped = bytes.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    std::fs::write(&part, flipped).unwrap();
    assert!(load().contains("optimizer-00002-of-00003.safetensors is damaged"), "{}", load());
    std::fs::write(&part, bytes).unwrap();
    std::fs::write(folder.join("weights-00004-of-00003.safetensors"), "").unwrap();
    assert!(load().contains("holds weights-00004-of-00003.safetensors, which is not part"), "{}", load());
}
