//! Data through the whole program: prepared once, found again, looked at, refused.

mod common;

use common::{JOB, Place, contents};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A job with this in the place of its `data.train`.
fn job(train: &str) -> String {
    JOB.replace("train = [\"text/*.txt\"]", train)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Folders of prepared data in the cache.
fn prepared(p: &Place) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(p.path("cache/memwall")) else { return Vec::new() };
    entries.map(|e| e.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// When each file of a folder was last written.
fn times(folder: &Path) -> Vec<std::time::SystemTime> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().metadata().unwrap().modified().unwrap()).collect()
}

#[test]
fn data_is_prepared_once_for_all_runs() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let folders = prepared(&p);
    assert_eq!(folders.len(), 1);
    let before = times(&folders[0]);
    p.ok(&["train", "job.toml", "--set", "run.dir=again", "--set", "data.sequence_length=20"]);
    assert_eq!((prepared(&p), times(&folders[0])), (folders, before));
}

#[test]
fn prepared_data_trains_without_the_files_it_came_from() {
    let p = Place::new();
    p.write("held.txt", &"what is evaluated on\n".repeat(20));
    let text = job(
        "train = [{files = \"text/[abc]*\", weight = 3}, {files = \"text/[def]*\"}]\nevaluation = \"held.txt\"",
    );
    p.write("mix.toml", &text.replace("validation = 0.1\n", ""));
    let out = p.ok(&["data", "prepare", "mix.toml", "--out", "sets/mix"]);
    assert!(
        out.contains("3 documents") && out.contains("evaluation") && out.contains("data.prepared"),
        "{out}"
    );
    assert!(prepared(&p).is_empty(), "the cache is not used");
    p.ok(&["train", "mix.toml", "--set", "run.dir=files"]);
    std::fs::remove_dir_all(p.path("text")).unwrap();
    std::fs::remove_dir_all(p.path("cache")).unwrap();
    p.write("set.toml", &job("prepared = \"sets/mix\"").replace("validation = 0.1\n", ""));
    p.ok(&["train", "set.toml", "--set", "run.dir=set"]);
    assert_eq!(p.metrics("set"), p.metrics("files"));
    assert_eq!(contents(&p.path("set/export")), contents(&p.path("files/export")));
    assert!(p.refused(&["data", "prepare", "mix.toml", "--out", "sets/mix"]).contains("exists already"));
    let share = p.refused(&["train", "set.toml", "--set", "run.dir=no", "--set", "data.validation=0.1"]);
    assert!(share.contains("data.validation = 0.1 contradicts"), "{share}");
    let epochs =
        job("prepared = \"sets/mix\"").replace("validation = 0.1\n", "").replace("steps = 12", "epochs = 1");
    p.write("epochs.toml", &epochs);
    assert!(p.refused(&["train", "epochs.toml", "--set", "run.dir=no"]).contains("mixture"));
}

#[test]
fn every_format_gives_the_same_samples() {
    let p = Place::new();
    std::fs::create_dir(p.path("lines")).unwrap();
    let names = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"];
    let texts: Vec<String> =
        names.iter().map(|n| std::fs::read_to_string(p.path(&format!("text/{n}.txt"))).unwrap()).collect();
    let rows: Vec<String> = texts.iter().map(|t| json!({"n": 1, "body": t}).to_string()).collect();
    p.write("lines/all.jsonl", &rows.join("\n"));
    p.ok(&["train", "job.toml"]);
    p.write("lines.toml", &job("train = \"lines/*\"\nfield = \"body\""));
    p.ok(&["train", "lines.toml", "--set", "run.dir=lines-run"]);
    assert_eq!(p.metrics("lines-run"), p.metrics("run"));
    let text = p.refused(&["train", "lines.toml", "--set", "run.dir=no", "--set", "data.field=text"]);
    for word in ["all.jsonl, line 1", "\"text\"", "\"n\", \"body\"", "data.field"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

// The samples that other programs are fed are those that the run trains on.
#[test]
fn a_step_is_shown_as_it_is_trained_on() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    for packing in ["packed", "documents"] {
        let set = format!("data.packing={packing}");
        let dir = format!("run.dir={packing}");
        p.ok(&["train", "job.toml", "--set", &set, "--set", &dir]);
        for (step, metrics) in (1..).zip(p.metrics(packing)) {
            let step = step.to_string();
            let out = p.ok(&["data", "inspect", "job.toml", "--step", &step, "--json", "--set", &set]);
            let samples = lines(&out);
            assert_eq!(samples.len(), 6);
            let numbers = |sample: &Value, key: &str| -> Vec<i64> {
                sample[key].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
            };
            let mut valid = 0;
            for (i, sample) in samples.iter().enumerate() {
                let first = (step.parse::<u64>().unwrap() - 1) * 6;
                assert_eq!(sample["sample"].as_u64(), Some(first + i as u64));
                let (tokens, targets) = (numbers(sample, "tokens"), numbers(sample, "targets"));
                let positions = numbers(sample, "positions");
                assert_eq!((tokens.len(), targets.len(), positions.len()), (33, 33, 33));
                let counted = targets.iter().filter(|t| **t >= 0).count();
                assert_eq!(sample["valid"].as_u64(), Some(counted as u64));
                valid += counted as u64;
                for i in 0..32 {
                    assert!(targets[i] < 0 || targets[i] == tokens[i + 1]);
                    assert!(positions[i + 1] == positions[i] + 1 || positions[i + 1] == 0);
                }
                // The run's own text, and its ends of documents.
                assert!(tokens.iter().all(|id| (0..=256).contains(id)));
            }
            assert_eq!(metrics["tokens"].as_u64(), Some(valid), "step {step}");
        }
    }
    let shown = p.ok(&["data", "inspect", "job.toml", "--step", "2", "--samples", "2"]);
    assert_eq!(shown.matches("sample ").count(), 2);
    assert!(shown.contains("says: "), "{shown}");
    assert!(p.refused(&["data", "inspect", "job.toml", "--step", "0"]).contains("from 1"));
}

// Text without a repeated byte, so that a sample that is shown twice or not at all, or of other data, is noticed.
#[test]
fn an_evaluation_is_shown_as_it_is_evaluated_on() {
    let p = Place::new();
    let held: Vec<u8> = (b' '..=b'~').collect();
    p.write("held.txt", std::str::from_utf8(&held).unwrap());
    p.write(
        "held.toml",
        &job("train = \"text/*.txt\"\nevaluation = \"held.txt\"").replace("validation = 0.1\n", ""),
    );
    let shown = |sets: &[&str]| -> Vec<Value> {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> =
            ["data", "inspect", "held.toml", "--evaluation", "--json"].into_iter().chain(sets).collect();
        lines(&p.ok(&args))
    };
    let all = shown(&["train.evaluate_batches=0"]);
    let mut tokens: Vec<i64> = all
        .iter()
        .flat_map(|sample| sample["tokens"].as_array().unwrap())
        .map(|id| id.as_i64().unwrap())
        .filter(|id| held.contains(&(*id as u8)) && *id < 256)
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens, held.iter().map(|byte| i64::from(*byte)).collect::<Vec<_>>());
    let valid: u64 = all.iter().map(|sample| sample["valid"].as_u64().unwrap()).sum();
    let counted = all.iter().flat_map(|s| s["targets"].as_array().unwrap()).filter(|t| t.as_i64() >= Some(0));
    assert_eq!(valid, counted.count() as u64);
    // One micro-batch of two sequences, the first of all.
    assert_eq!(shown(&["train.evaluate_batches=1"]), all[..2]);
    let text = p.ok(&["data", "inspect", "held.toml", "--evaluation", "--samples", "1"]);
    assert!(text.contains("sample     0: ") && !text.contains("epoch"), "{text}");
    let sets = ["--set", "data.validation=0", "--set", "train.evaluate_every=0"];
    let nothing = [&["data", "inspect", "job.toml", "--evaluation"][..], &sets].concat();
    assert!(p.refused(&nothing).contains("evaluates on nothing"));
}

#[test]
fn prepared_data_is_described() {
    let p = Place::new();
    let text = p.ok(&["data", "prepare", "job.toml"]);
    assert!(text.contains("6 documents") && text.contains("6 files"), "{text}");
    let folder = prepared(&p).remove(0);
    let folder = folder.to_str().unwrap();
    let text = p.ok(&["data", "inspect", folder, "--verify"]);
    for word in ["bytes, vocabulary 257", "lengths", "padding", "alpha 0 says: alpha!", "verified"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    let of = |args: &[&str]| -> Value { serde_json::from_str(&p.ok(args)).unwrap() };
    let whole = of(&["data", "inspect", "job.toml", "--json", "--samples", "2"]);
    let source = &whole["sources"][0];
    let bytes: u64 = contents(&p.path("text")).iter().map(|(_, content)| content.len() as u64).sum();
    assert_eq!(source["file_bytes"].as_u64(), Some(bytes));
    assert_eq!(source["tokens"].as_u64(), Some(bytes + 6), "each document has its end");
    assert_eq!(source["documents"], 6);
    let counted: u64 =
        source["lengths"].as_array().unwrap().iter().map(|row| row["documents"].as_u64().unwrap()).sum();
    assert_eq!((counted, source["begins"].as_array().unwrap().len()), (6, 2));
    // By hand: a document of L tokens takes ceil((L - 1) / 33) sequences when it lies alone.
    let lengths: Vec<u64> = contents(&p.path("text")).iter().map(|(_, text)| text.len() as u64 + 1).collect();
    let samples: u64 = lengths.iter().map(|l| (l - 1).div_ceil(33)).sum();
    let inputs: u64 = lengths.iter().map(|l| (*l).min((l - 1).div_ceil(33) * 33)).sum();
    let alone = 1.0 - inputs as f64 / (samples * 33) as f64;
    assert!((source["padding"]["documents"].as_f64().unwrap() - alone).abs() < 1e-12, "{source}");
    assert!(source["padding"]["packed"].as_f64().unwrap() < alone);
    assert!(p.refused(&["data", "inspect", folder, "--step", "1"]).contains("name the job file"));
    assert!(p.refused(&["data", "inspect", "text"]).contains("manifest.json"));
    assert!(p.refused(&["data", "inspect", "nowhere"]).contains("nowhere"));
}

#[test]
fn damaged_data_is_refused_by_file() {
    let p = Place::new();
    p.ok(&["data", "prepare", "job.toml"]);
    let tokens = prepared(&p).remove(0).join("tokens-00000.bin");
    let whole = std::fs::read(&tokens).unwrap();
    std::fs::write(&tokens, &whole[..whole.len() - 2]).unwrap();
    let text = p.refused(&["train", "job.toml"]);
    assert!(text.contains("tokens-00000.bin") && text.contains("prepare the data again"), "{text}");
    assert!(!p.path("run/job.toml").exists());
    let mut changed = whole.clone();
    changed[20] ^= 1;
    std::fs::write(&tokens, &changed).unwrap();
    assert!(p.refused(&["data", "inspect", "job.toml", "--verify"]).contains("tokens-00000.bin"));
    // An id that was never written ends a run before it does harm.
    changed[20..22].copy_from_slice(&[255, 255]);
    changed[whole.len() / 2..].fill(255);
    std::fs::write(&tokens, &changed).unwrap();
    let out = p.memwall(&["train", "job.toml"]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("tokens-00000.bin") && text.contains("65535"), "{text}");
    std::fs::write(&tokens, &whole).unwrap();
    p.ok(&["data", "inspect", "job.toml", "--verify"]);
}

#[test]
fn data_of_another_tokenizer_is_refused() {
    let p = Place::new();
    p.ok(&["data", "prepare", "job.toml", "--out", "set"]);
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1}, "unk_token": "<unk>"},
    });
    p.write("tokenizer.json", &tokenizer.to_string());
    p.write("set.toml", &job("prepared = \"set\""));
    let text = p.refused(&["train", "set.toml", "--set", "data.tokenizer=tokenizer.json"]);
    assert!(text.contains("prepared with the tokenizer bytes"), "{text}");
    let text = p.refused(&["train", "set.toml", "--set", "data.prepared=nowhere"]);
    assert!(text.contains("nowhere/data.json"), "{text}");
}

#[test]
fn a_tokenizer_with_more_ids_than_the_model_is_taken_while_the_text_has_none_of_them() {
    let p = Place::new();
    let tokenizer = |rare: u32| {
        json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1, "says:": rare, "kept": 900},
                      "unk_token": "<unk>"},
        })
    };
    let args = ["train", "job.toml", "--set", "data.tokenizer=t.json", "--set", "data.sequence_length=8"];
    p.write("t.json", &tokenizer(500).to_string());
    let text = p.refused(&args);
    assert!(text.contains("token 500") && text.contains("vocab_size is 257"), "{text}");
    p.write("t.json", &tokenizer(2).to_string());
    p.ok(&args);
}

// The disk is full after the first kilobytes: the limit on a file's size stands for it.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let p = Place::new();
    p.write("text/long.txt", &"a text that is too long for the disk\n".repeat(20_000));
    for out in [&[][..], &["--out", "set"]] {
        let mut c = std::process::Command::new("sh");
        // A program that ignores the signal gets an error, as from a full disk.
        c.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_memwall")]);
        c.args(["data", "prepare", "job.toml"]).args(out).current_dir(p.path(""));
        let output = c.env("XDG_CACHE_HOME", p.path("cache")).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("tokens-00000.bin") && text.contains("free space"), "{text}");
        assert!(prepared(&p).is_empty());
        assert!(
            std::fs::read_dir(p.path("")).unwrap().all(|e| !e
                .unwrap()
                .file_name()
                .to_string_lossy()
                .starts_with("set"))
        );
    }
    p.ok(&["data", "prepare", "job.toml"]);
}

#[test]
fn a_cache_that_cannot_be_written_has_a_substitute_unless_it_was_asked_for() {
    let p = Place::new();
    p.write("cache", "a file");
    p.ok(&["data", "prepare", "job.toml", "--set", "run.dir=runs/a"]);
    assert!(p.path("runs/data-cache").is_dir());
    let text = p.refused(&["data", "prepare", "job.toml", "--set", "data.cache=cache/deep"]);
    assert!(text.contains("data.cache"), "{text}");
    p.ok(&["data", "prepare", "job.toml", "--set", "data.cache=own/deep"]);
    assert!(p.path("own/deep").is_dir());
}

#[test]
fn files_that_are_no_text_are_named_with_the_place() {
    let p = Place::new();
    std::fs::write(p.path("text/binary.txt"), b"text\0more").unwrap();
    let text = p.refused(&["train", "job.toml"]);
    assert!(text.contains("binary.txt") && text.contains("NUL") && text.contains("offset 4"), "{text}");
    std::fs::write(p.path("text/binary.txt"), b"").unwrap();
    assert!(p.ok(&["data", "prepare", "job.toml"]).contains("1 without text left out"));
    p.write("empty.toml", &job("train = \"text/binary.txt\""));
    assert!(p.refused(&["train", "empty.toml"]).contains("no text"));
    assert!(prepared(&p).len() == 1 && !p.path("run/job.toml").exists());
}
