//! Exported folders: read by the format's own library and by this crate, whole whatever fails.

mod common;

use common::{config, rank_of, weights};
use half::{bf16, f16};
use memwall_checkpoint::{CheckpointError, Disk, Export, FloatType, ModelFile, Operation, write_model};
use memwall_engine::{MicroBatch, Part, Rank};
use memwall_model::ParamId;
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

fn export(dtype: FloatType, max_shard_bytes: u64) -> Export<'static> {
    Export { dtype, max_shard_bytes, end_of_document: Some(7), generation_config: None }
}

fn write(folder: &Path, rank: &Rank<Cpu>, export: &Export<'_>) -> Result<(), CheckpointError> {
    write_model(&Disk::default(), folder, &mut &*rank, export)
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All tensors of a folder's files, as the format's own library reads them.
fn stored(folder: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for name in names(folder).iter().filter(|n| n.ends_with(".safetensors")) {
        let bytes = fs::read(folder.join(name)).unwrap();
        for (tensor, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let old = all.insert(tensor, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            assert!(old.is_none(), "a tensor in two files");
        }
    }
    all
}

#[test]
fn each_parameter_is_written_once_in_the_type_and_rounded_to_nearest() {
    for tied in [true, false] {
        let rank = rank_of(&config(8, 17, tied), 3);
        for (kind, dtype) in
            [(FloatType::F32, Dtype::F32), (FloatType::BF16, Dtype::BF16), (FloatType::F16, Dtype::F16)]
        {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &rank, &export(kind, Export::USUAL_SHARD)).unwrap();
            assert_eq!(names(dir.path()), ["config.json", "generation_config.json", "model.safetensors"]);
            let stored = stored(dir.path());
            assert_eq!(stored.len(), rank.spec().params.len());
            assert_eq!(stored.contains_key("lm_head.weight"), !tied);
            for (i, p) in rank.spec().params.iter().enumerate() {
                let bytes = |v: f32| match kind {
                    FloatType::F32 => v.to_le_bytes().to_vec(),
                    FloatType::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                    FloatType::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
                };
                let values = rank.device().read_f32(rank.part(Part::Weight, ParamId(i)));
                let expected = (dtype, p.shape.clone(), values.into_iter().flat_map(bytes).collect());
                assert_eq!(stored[&p.name], expected, "{}", p.name);
            }
            let config = json_of(&dir.path().join("config.json"));
            assert_eq!(
                (&config["dtype"], &config["tie_word_embeddings"]),
                (&json!(kind.name()), &json!(tied))
            );
            assert_eq!(json_of(&dir.path().join("generation_config.json")), json!({"eos_token_id": 7}));
        }
    }
}

#[test]
fn what_is_written_reads_back_and_halves_read_back_as_themselves() {
    let rank = rank_of(&config(8, 17, true), 3);
    for (kind, shard) in [(FloatType::F32, 1 << 30), (FloatType::F32, 900), (FloatType::BF16, 900)] {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(first.path(), &rank, &export(kind, shard)).unwrap();
        let mut read = rank_of(&config(8, 17, true), 4);
        ModelFile::open(first.path(), &read.spec().clone()).unwrap().load(&mut read).unwrap();
        if kind == FloatType::F32 {
            assert_eq!(weights(&read), weights(&rank));
        }
        write(second.path(), &read, &export(kind, shard)).unwrap();
        assert_eq!(stored(first.path()), stored(second.path()));
    }
}

// DeepSpeed #6691, PR #5475: after converting, the loss restarted as if untrained.
#[test]
fn ds_6691_what_is_exported_has_the_loss_of_what_was_trained() {
    let mut load = |_: usize, b: &mut MicroBatch<'_>| {
        for (i, (t, g)) in b.tokens.iter_mut().zip(b.targets.iter_mut()).enumerate() {
            (*t, *g) = (i as i32 * 5 % 17, (i as i32 * 5 + 5) % 17);
        }
    };
    for tied in [true, false] {
        let mut trained = rank_of(&config(8, 17, tied), 3);
        let untrained = trained.evaluate(1, &mut load, 8).unwrap();
        for _ in 0..4 {
            trained.step(&mut load, 8).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &trained, &export(FloatType::F32, 600)).unwrap();
        let mut again = rank_of(&config(8, 17, tied), 9);
        ModelFile::open(dir.path(), again.spec()).unwrap().load(&mut again).unwrap();
        assert_eq!(weights(&trained), weights(&again));
        let loss = again.evaluate(1, &mut load, 8).unwrap();
        assert_eq!(loss.to_bits(), trained.evaluate(1, &mut load, 8).unwrap().to_bits());
        assert!(loss < untrained - 0.1, "{loss} after {untrained}");
    }
}

#[test]
fn files_hold_as_much_as_fits_and_the_index_says_what() {
    let rank = rank_of(&config(8, 17, false), 3);
    let dir = tempfile::tempdir().unwrap();
    let most = 900;
    write(dir.path(), &rank, &export(FloatType::F32, most)).unwrap();
    let index = json_of(&dir.path().join("model.safetensors.index.json"));
    let map = index["weight_map"].as_object().unwrap();
    assert_eq!(map.len(), rank.spec().params.len());
    let files: Vec<String> = names(dir.path()).into_iter().filter(|n| n.ends_with(".safetensors")).collect();
    let size = |tensor: &str| {
        let p = rank.spec().params.iter().find(|p| p.name == tensor).unwrap();
        4 * p.shape.iter().product::<usize>() as u64
    };
    let mut room = 0;
    for (i, name) in files.iter().enumerate() {
        assert_eq!(*name, format!("model-{:05}-of-{:05}.safetensors", i + 1, files.len()));
        let bytes = fs::read(dir.path().join(name)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert!(tensors.names().iter().all(|t| map[*t] == **name));
        // In the order of the model, so a file ends where the next tensor does not fit.
        let held: Vec<&str> =
            rank.spec().params.iter().map(|p| &*p.name).filter(|p| map[*p] == **name).collect();
        assert!(size(held[0]) > room, "{} fits the file before", held[0]);
        let sum: u64 = held.iter().map(|t| size(t)).sum();
        assert!(sum <= most || held.len() == 1, "{name} holds {sum} bytes");
        room = most.saturating_sub(sum);
    }
    let total = 4 * rank.spec().parameter_count();
    assert!(files.len() > 3);
    assert_eq!(index["metadata"]["total_size"], total);
}

#[test]
fn the_generation_config_of_the_model_that_was_trained_further_is_kept() {
    let rank = rank_of(&config(8, 17, true), 3);
    let (source, result) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(source.path(), &rank, &export(FloatType::F32, 1 << 30)).unwrap();
    let theirs = json!({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4, "temperature": 0.6});
    fs::write(source.path().join("generation_config.json"), theirs.to_string()).unwrap();
    let opened = ModelFile::open(source.path(), rank.spec()).unwrap();
    let keys = opened.generation_config();
    let export = Export { generation_config: keys, ..export(FloatType::F32, 1 << 30) };
    write(result.path(), &rank, &export).unwrap();
    assert_eq!(json_of(&result.path().join("generation_config.json")), theirs);
    fs::write(source.path().join("generation_config.json"), "[1]").unwrap();
    let e = ModelFile::open(source.path(), rank.spec()).unwrap_err().to_string();
    assert!(e.contains("generation_config.json is not a JSON object"), "{e}");
}

#[test]
fn a_weight_that_the_type_does_not_hold_is_refused_and_nothing_is_left() {
    for (kind, value, text) in [
        (FloatType::F32, f32::NAN, "NaN as float32"),
        (FloatType::BF16, f32::MAX, "inf as bfloat16"),
        (FloatType::F16, -65520.0, "-inf as float16"),
    ] {
        let mut rank = rank_of(&config(8, 17, true), 3);
        let (device, dst) = rank.part_mut(Part::Weight, ParamId(2));
        device.fill(dst.part(5, 1), value);
        let dir = tempfile::tempdir().unwrap();
        let e = write(dir.path(), &rank, &export(kind, 900)).unwrap_err().to_string();
        let name = &rank.spec().params[2].name;
        assert!(e.contains(&format!("element 5 of {name} is {text}")), "{e}");
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn a_folder_that_is_not_empty_is_left_alone() {
    let rank = rank_of(&config(8, 17, true), 3);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model-00001-of-00009.safetensors"), "old").unwrap();
    let e = write(dir.path(), &rank, &export(FloatType::F32, 900)).unwrap_err().to_string();
    assert!(e.contains("is not empty"), "{e}");
    assert_eq!(names(dir.path()), ["model-00001-of-00009.safetensors"]);
}

/// A disk on which operation number `at` fails, and later ones too if it `stays` broken.
fn broken(at: u64, stays: bool, done: Arc<AtomicU64>) -> Disk {
    Disk::with_hook(move |operation, _| {
        let n = done.fetch_add(1, Ordering::Relaxed);
        let deletes = matches!(operation, Operation::Remove | Operation::RemoveFolder);
        let fails = if stays { n >= at } else { n == at && !deletes };
        if fails { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    })
}

#[test]
fn whatever_operation_fails_there_is_no_half_of_a_model() {
    let rank = rank_of(&config(8, 17, true), 3);
    for stays in [false, true] {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("export");
            let done = Arc::new(AtomicU64::new(0));
            let disk = broken(at, stays, done.clone());
            match write_model(&disk, &folder, &mut &rank, &export(FloatType::BF16, 900)) {
                Ok(()) => {
                    assert!(at > 30, "an export takes more than {at} operations");
                    break;
                }
                Err(e) => assert!(e.to_string().contains("export"), "{e}"),
            }
            if !folder.exists() {
                continue;
            }
            if stays {
                // Power that is gone deletes nothing: then whatever stands under its name is whole.
                stored(&folder);
                let whole = names(&folder).contains(&"config.json".to_owned());
                assert!(!whole || ModelFile::open(&folder, rank.spec()).is_ok(), "failed at operation {at}");
            } else {
                assert_eq!(names(&folder), [""; 0], "failed at operation {at}");
            }
        }
    }
}
