//! Model folders as they come: types, one file or several, names, copies of tied heads; and what is refused.

mod common;

use common::{config, rank_of, tensor_file, weights};
use half::{bf16, f16};
use memwall_checkpoint::{CheckpointError, ModelFile};
use memwall_engine::{Part, Rank};
use memwall_model::ParamId;
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use safetensors::Dtype;
use std::fs;
use std::path::Path;

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// The tensors of a rank in one of the types that are read. The values are exact in all of them.
fn tensors(rank: &Rank<Cpu>, dtype: Dtype) -> Vec<Tensor> {
    let bytes = |v: f32| match dtype {
        Dtype::F32 => v.to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
        _ => unreachable!("not a type that is read"),
    };
    let params = rank.spec().params.iter().enumerate();
    let values = |i| rank.device().read_f32(rank.part(Part::Weight, ParamId(i)));
    params
        .map(|(i, p)| {
            (p.name.clone(), dtype, p.shape.clone(), values(i).into_iter().flat_map(bytes).collect())
        })
        .collect()
}

/// A rank whose weights have few bits, so that every type holds them.
fn few_bits(tied: bool) -> Rank<Cpu> {
    let mut rank = rank_of(&config(8, 17, tied), 1);
    for i in 0..rank.spec().params.len() {
        let n = rank.spec().params[i].len();
        let values: Vec<u8> =
            (0..n).flat_map(|j| (((j * 7 + i * 3) % 61) as f32 / 16.0 - 2.0).to_le_bytes()).collect();
        let (device, dst) = rank.part_mut(Part::Weight, ParamId(i));
        device.write(dst, &values);
    }
    rank
}

/// Writes `model.safetensors` and loads it into a rank of other values.
fn loaded(tied: bool, tensors: &[Tensor]) -> Result<Rank<Cpu>, CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), tensor_file(tensors)).unwrap();
    load(dir.path(), tied)
}

fn load(folder: &Path, tied: bool) -> Result<Rank<Cpu>, CheckpointError> {
    let mut rank = rank_of(&config(8, 17, tied), 2);
    ModelFile::open(folder, &rank.spec().clone())?.load(&mut rank)?;
    Ok(rank)
}

fn refusal(result: Result<Rank<Cpu>, CheckpointError>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn every_type_loads_to_the_same_bits() {
    let rank = few_bits(false);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        assert_eq!(weights(&loaded(false, &tensors(&rank, dtype)).unwrap()), weights(&rank), "{dtype}");
    }
    // Each tensor of its own type.
    let types = [Dtype::F32, Dtype::BF16, Dtype::F16].into_iter().cycle();
    let mixed: Vec<Tensor> =
        types.take(rank.spec().params.len()).enumerate().map(|(i, t)| tensors(&rank, t)[i].clone()).collect();
    assert_eq!(weights(&loaded(false, &mixed).unwrap()), weights(&rank));
}

#[test]
fn other_types_are_refused_with_the_tensor() {
    let rank = few_bits(false);
    let all = tensors(&rank, Dtype::F32);
    for (dtype, size) in
        [(Dtype::F64, 8), (Dtype::I8, 1), (Dtype::F8_E4M3, 1), (Dtype::I32, 4), (Dtype::BOOL, 1)]
    {
        let mut all = all.clone();
        let n: usize = all[3].2.iter().product();
        (all[3].1, all[3].3) = (dtype, vec![0; n * size]);
        let e = refusal(loaded(false, &all));
        assert!(e.contains(&format!("{} has type {dtype}; F32, BF16 and F16 are read", all[3].0)), "{e}");
    }
}

#[test]
fn names_without_the_prefix_load_and_masks_and_frequencies_are_skipped() {
    let rank = few_bits(true);
    let mut all = tensors(&rank, Dtype::BF16);
    for t in &mut all {
        t.0 = t.0.strip_prefix("model.").unwrap().to_owned();
    }
    all.push(("layers.0.self_attn.rotary_emb.inv_freq".into(), Dtype::F64, vec![2], vec![0; 16]));
    all.push(("h.1.attn.bias".into(), Dtype::BOOL, vec![1, 1, 3, 3], vec![1; 9]));
    all.push(("h.1.attn.masked_bias".into(), Dtype::F32, vec![], vec![0; 4]));
    assert_eq!(weights(&loaded(true, &all).unwrap()), weights(&rank));
    all.push(("h.1.attn.c_attn.bias".into(), Dtype::F32, vec![1], vec![0; 4]));
    let e = refusal(loaded(true, &all));
    assert!(e.contains("h.1.attn.c_attn.bias is not a parameter of this model"), "{e}");
}

#[test]
fn a_stored_tied_head_must_equal_the_embedding_to_the_bit() {
    let rank = few_bits(true);
    let mut all = tensors(&rank, Dtype::F32);
    let head = ("lm_head.weight".to_owned(), Dtype::F32, all[0].2.clone(), all[0].3.clone());
    all.push(head);
    assert_eq!(weights(&loaded(true, &all).unwrap()), weights(&rank));
    // The last bit of element 100.
    all.last_mut().unwrap().3[400] ^= 1;
    let e = refusal(loaded(true, &all));
    assert!(
        e.contains("tie_word_embeddings = true, but lm_head.weight is not model.embed_tokens.weight"),
        "{e}"
    );
    assert!(e.contains("element 100"), "{e}");
    // An untied model has its own head.
    assert_eq!(weights(&loaded(false, &all).unwrap()).len(), all.len());
}

#[test]
fn what_is_not_a_number_is_refused_with_tensor_and_element() {
    let rank = few_bits(false);
    for (dtype, nan, infinity) in [
        (Dtype::F32, f32::NAN.to_le_bytes().to_vec(), f32::NEG_INFINITY.to_le_bytes().to_vec()),
        (Dtype::BF16, bf16::NAN.to_le_bytes().to_vec(), bf16::NEG_INFINITY.to_le_bytes().to_vec()),
        (Dtype::F16, f16::NAN.to_le_bytes().to_vec(), f16::NEG_INFINITY.to_le_bytes().to_vec()),
    ] {
        for (bytes, text) in [(nan, "NaN"), (infinity, "-inf")] {
            let mut all = tensors(&rank, dtype);
            let t = &mut all[2];
            let at = t.3.len() - bytes.len();
            t.3[at..].copy_from_slice(&bytes);
            let (name, last) = (t.0.clone(), t.2.iter().product::<usize>() - 1);
            let e = refusal(loaded(false, &all));
            assert!(e.contains(&format!("element {last} of {name} is {text} as ")), "{e}");
        }
    }
}

/// Splits tensors into two files with an index.
fn split(folder: &Path, all: &[Tensor]) -> serde_json::Value {
    let half = all.len() / 2;
    fs::write(folder.join("a.safetensors"), tensor_file(&all[..half])).unwrap();
    fs::write(folder.join("b.safetensors"), tensor_file(&all[half..])).unwrap();
    let file = |i| if i < half { "a.safetensors" } else { "b.safetensors" };
    let map: serde_json::Map<_, _> =
        all.iter().enumerate().map(|(i, t)| (t.0.clone(), file(i).into())).collect();
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
    write_index(folder, &index);
    index
}

fn write_index(folder: &Path, index: &serde_json::Value) {
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn several_files_with_an_index_load_as_one_does_and_one_file_comes_first() {
    let rank = few_bits(false);
    let dir = tempfile::tempdir().unwrap();
    split(dir.path(), &tensors(&rank, Dtype::BF16));
    assert_eq!(weights(&load(dir.path(), false).unwrap()), weights(&rank));
    let other = rank_of(&config(8, 17, false), 7);
    fs::write(dir.path().join("model.safetensors"), tensor_file(&tensors(&other, Dtype::F32))).unwrap();
    assert_eq!(weights(&load(dir.path(), false).unwrap()), weights(&other));
}

#[test]
fn an_index_that_does_not_fit_its_files_is_refused_by_names() {
    let rank = few_bits(false);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let all = tensors(&rank, Dtype::F32);
    let index = split(folder, &all);
    let (first, last) = (all[0].0.as_str(), all.last().unwrap().0.as_str());
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = index.clone();
        change(&mut changed["weight_map"]);
        write_index(folder, &changed);
        let e = refusal(load(folder, false));
        assert!(e.contains("model.safetensors.index.json"), "{e}");
        e
    };
    let e = with(&|map| map[last] = "c.safetensors".into());
    assert!(
        e.contains(&format!("lists in c.safetensors the tensor {last}, which is in b.safetensors")),
        "{e}"
    );
    let e = with(&|map| map[first] = "b.safetensors".into());
    assert!(e.contains(first) && e.contains("b.safetensors") && e.contains("a.safetensors"), "{e}");
    let e = with(&|map| map["other"] = "a.safetensors".into());
    assert!(e.contains("lists the tensor other in a.safetensors, which does not hold it"), "{e}");
    let e = with(&|map| drop(map.as_object_mut().unwrap().remove(last)));
    assert!(e.contains("does not list") && e.contains(last), "{e}");
    for hostile in
        ["../a.safetensors", "/etc/passwd", "", ".", "..", "x/a.safetensors", "a.safetensors/", "a\0"]
    {
        let e = with(&|map| map[first] = hostile.into());
        assert!(e.contains("is not the name of a file in the same folder"), "{e}");
    }
    let e = with(&|map| map[first] = 1.into());
    assert!(e.contains("is not an index of weights: invalid type"), "{e}");
    // The same tensor in both files.
    let mut both = all[all.len() / 2..].to_vec();
    both.push(all[0].clone());
    fs::write(folder.join("b.safetensors"), tensor_file(&both)).unwrap();
    let e = with(&|_| {});
    assert!(
        e.contains(&format!("lists in a.safetensors the tensor {first}, which is in b.safetensors")),
        "{e}"
    );
    fs::remove_file(folder.join("b.safetensors")).unwrap();
    let e = with(&|_| {});
    assert!(e.contains("names the file b.safetensors, which is not there"), "{e}");
}

#[test]
fn an_index_that_is_not_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        "",
        "[]",
        "{}",
        "{\"weight_map\": []}",
        "{\"weight_map\": {}, \"weight_map\": {}}",
        "{\"weight_map\": {\"a\": \"b\", \"a\": \"b\"}}",
        "{\"weight_map\": {\"a\": \"b\"}",
        &format!("{{\"metadata\": {deep}x, \"weight_map\": {{}}}}"),
        &format!("{{\"weight_map\": {deep}}}"),
    ] {
        fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        let e = refusal(load(dir.path(), true));
        assert!(e.contains("is not an index of weights: "), "{e}");
        assert!(e.len() < 1000, "{} characters", e.len());
    }
}

#[test]
fn a_folder_without_weights_says_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let e = refusal(load(dir.path(), true));
    assert!(e.contains("holds neither model.safetensors nor model.safetensors.index.json"), "{e}");
    fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    let e = refusal(load(dir.path(), true));
    assert!(e.contains("model.safetensors is not a regular file"), "{e}");
}
