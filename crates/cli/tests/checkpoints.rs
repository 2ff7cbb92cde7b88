//! `memwall checkpoint`: what is in one, whether it is whole, in other parts or as a model, and how two differ.

mod common;

use common::{JOB, Place, contents, tensors};
use serde_json::Value;
use std::path::Path;

/// A run of two ranks of ZeRO-3 that was stopped after six steps.
fn trained(p: &Place) -> String {
    p.write("job.toml", &JOB.replace("micro_batch = 2", "micro_batch = 1\ndeterministic = true"));
    p.ok(&["train", "job.toml", "--stop-after", "6", "--set", "parallel.zero=3", "--ranks", "2"])
}

#[test]
fn inspect_says_what_a_checkpoint_is_of_and_where_it_lies() {
    let p = Place::new();
    let out = trained(&p);
    assert!(out.contains("stopped after step 6, which is saved; go on with --resume"), "{out}");
    assert!(out.contains("saves      2 saves, each ") && out.contains("training stood still for"), "{out}");
    for path in ["run", "run/checkpoints", "run/checkpoints/latest", "run/checkpoints/step-00000006"] {
        let out = p.ok(&["checkpoint", "inspect", path]);
        for words in [
            "step 6: 36 samples",
            "vocabulary 257",
            "in 4 files",
            "saved in 2 parts by ranks of dp_replicate 1 x dp_shard 2, ZeRO stage 3",
            "cosine, 3e-3 to 0e0, warm-up 2 of 12 steps",
            "seed 3",
            "optimizer-00002-of-00002.safetensors",
            "written by memwall 0.1.0",
        ] {
            assert!(out.contains(words), "no {words:?} in {out}");
        }
    }
    let json: Value = serde_json::from_str(&p.ok(&["checkpoint", "inspect", "run", "--json"])).unwrap();
    assert_eq!(
        (&json["manifest"]["state"]["step"], &json["parts"], &json["vocabulary"]),
        (&6.into(), &2.into(), &257.into())
    );
    // 2 layers of 9 tensors, embedding, last norm and head; each with two moments.
    assert_eq!(json["tensors"].as_array().unwrap().len(), 3 * (2 * 9 + 3));
    let listed = p.ok(&["checkpoint", "inspect", "run", "--tensors"]);
    assert!(
        listed.contains("exp_avg_sq.model.layers.1.mlp.up_proj.weight") && listed.contains("40 x 24"),
        "{listed}"
    );
    // The job in it is the run's.
    assert_eq!(
        p.ok(&["checkpoint", "inspect", "run", "--job"]),
        std::fs::read_to_string(p.path("run/job.toml")).unwrap()
    );
}

#[test]
fn verify_finds_every_damage_and_names_the_file_and_the_tensor() {
    let p = Place::new();
    trained(&p);
    let out = p.ok(&["checkpoint", "verify", "run"]);
    assert!(out.starts_with("whole "), "{out}");
    let folder = p.path("run/checkpoints/step-00000006");
    let says = |words: &[&str]| {
        let out = p.memwall(&["checkpoint", "verify", "run"]);
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(1), "{text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
    };
    let files = contents(&folder);
    let restore = || {
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    };
    for (name, bytes) in files.iter().filter(|(name, _)| name.ends_with("safetensors")) {
        let path = folder.join(name);
        let mut flipped = bytes.clone();
        let at = bytes.len() - 1;
        flipped[at] ^= 0x10;
        std::fs::write(&path, &flipped).unwrap();
        says(&[name, ".weight does not have the recorded hash"]);
        std::fs::write(&path, &bytes[..at]).unwrap();
        says(&[name, "bytes instead of"]);
        std::fs::remove_file(&path).unwrap();
        says(&[name, "No such file"]);
        restore();
    }
    std::fs::write(folder.join("notes.txt"), "").unwrap();
    says(&["notes.txt, which is not part"]);
    restore();
    // Two things at once are told at once.
    std::fs::write(folder.join("notes.txt"), "").unwrap();
    std::fs::remove_file(folder.join("weights-00001-of-00002.safetensors")).unwrap();
    says(&["notes.txt", "weights-00001-of-00002.safetensors"]);
    restore();
    let mut manifest = std::fs::read(folder.join("manifest.json")).unwrap();
    let at = manifest.len() / 2;
    manifest[at] ^= 1;
    std::fs::write(folder.join("manifest.json"), manifest).unwrap();
    says(&["manifest.json", "damaged"]);
    restore();
    p.ok(&["checkpoint", "verify", "run"]);
    p.refused(&["checkpoint", "verify", "text"]);
}

/// DeepSpeed issue 6691: what was converted went on as if untrained.
#[test]
fn ds_6691_a_checkpoint_is_split_merged_and_exported_without_a_changed_bit() {
    let p = Place::new();
    trained(&p);
    let convert = |from: &str, to: &str, more: &[&str]| {
        p.ok(&[&["checkpoint", "convert", from, to], more].concat());
    };
    convert("run", "merged", &["--to", "checkpoint"]);
    convert("merged", "split", &["--to", "checkpoint", "--parts", "5"]);
    convert("split", "again", &["--to", "checkpoint", "--parts", "1"]);
    assert_eq!(contents(&p.path("split")).len(), 11);
    assert_eq!(contents(&p.path("again")), contents(&p.path("merged")));
    for other in ["merged", "split"] {
        p.ok(&["checkpoint", "verify", other]);
        let out = p.ok(&["checkpoint", "diff", "run", other]);
        assert!(out.starts_with("same       63 of 63 tensors to the bit"), "{out}");
    }
    // Each of them is gone on with, on one device, and takes the steps of the ranks that wrote it: the next loss is the same.
    p.ok(&["train", "job.toml", "--resume", "--set", "parallel.zero=3", "--ranks", "2"]);
    let learned = |run: &str| {
        let mut steps = p.metrics(run);
        steps.iter_mut().for_each(|m| drop(m.as_object_mut().unwrap().remove("bytes")));
        steps
    };
    for from in ["merged", "split"] {
        let run = format!("from-{from}");
        std::fs::create_dir_all(p.path(&run).join("checkpoints")).unwrap();
        std::fs::rename(p.path(from), p.path(&run).join("checkpoints/step-00000006")).unwrap();
        let job = p.ok(&["checkpoint", "inspect", &run, "--job"]);
        std::fs::write(p.path(&run).join("job.toml"), job).unwrap();
        p.ok(&["train", "job.toml", "--resume", "--set", &format!("run.dir={run}")]);
        assert_eq!(learned(&run), learned("run")[6..], "the metrics of steps before are not in a checkpoint");
        p.ok(&["checkpoint", "diff", "run", &run]);
    }

    convert("run", "model", &["--to", "model"]);
    assert_eq!(tensors(&p.path("model/model.safetensors")), tensors(&p.path("run/export/model.safetensors")));
    p.ok(&["checkpoint", "diff", "run", "model"]);
    p.ok(&["checkpoint", "verify", "model"]);
    assert!(p.ok(&["generate", "model", "--prompt", "alpha", "--max-tokens", "5"]).starts_with("alpha"));
    convert("run", "half", &["--to", "model", "--dtype", "bfloat16"]);
    let out = p.memwall(&["checkpoint", "diff", "run", "half"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.status.code() == Some(1) && text.contains("different") && text.contains("of its norm"),
        "{text}"
    );
    p.ok(&["checkpoint", "diff", "run", "half", "--tolerance", "0.01"]);
}

#[test]
fn a_run_begins_with_a_model_folders_weights() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    p.ok(&[
        "checkpoint",
        "convert",
        "run/export",
        "begun",
        "--to",
        "run",
        "--job",
        "job.toml",
        "--parts",
        "3",
    ]);
    p.ok(&["checkpoint", "diff", "begun", "run/export"]);
    p.ok(&["train", "job.toml", "--resume", "--set", "run.dir=begun"]);
    // As if the job had been told to fine-tune the folder.
    let job = std::fs::read_to_string(p.path("job.toml")).unwrap();
    let (_, rest) = job.split_once("[data]").unwrap();
    let tune = format!("[model]\npath = \"run/export\"\n[data]{}", rest.replace("tokenizer = \"bytes\"", ""));
    p.write("tune.toml", &tune);
    p.ok(&["train", "tune.toml", "--set", "run.dir=tuned"]);
    assert_eq!(p.metrics("begun"), p.metrics("tuned"));
}

#[test]
fn what_cannot_be_converted_or_is_no_checkpoint_is_refused_with_a_way_out() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let cases: [(&[&str], &str); 11] = [
        (&["inspect", "nowhere"], "does not exist"),
        (&["verify", "job.toml"], "is a file, and a checkpoint is a folder"),
        (&["inspect", "text"], "is neither a checkpoint"),
        (&["inspect", "run/export"], "is a model folder, and a checkpoint is needed"),
        (
            &["convert", "run", "x", "--to", "model", "--parts", "2"],
            "--parts is for a conversion to a checkpoint or a run",
        ),
        (
            &["convert", "run", "x", "--to", "checkpoint", "--dtype", "float16"],
            "--dtype is for a conversion to a model",
        ),
        (&["convert", "run", "x", "--to", "run", "--job", "job.toml"], "give --resume to train"),
        (&["convert", "run/export", "x", "--to", "checkpoint"], "give --to run"),
        (&["convert", "run/export", "x", "--to", "run"], "needs --job JOB.toml"),
        (&["convert", "run", "text", "--to", "checkpoint"], "is not empty"),
        (&["convert", "run/export", "run", "--to", "run", "--job", "job.toml"], "already holds a run"),
    ];
    for (args, words) in cases {
        let text = p.refused(&[&["checkpoint"], args].concat());
        assert!(text.contains(words), "{args:?}: no {words:?} in {text}");
    }
    assert!(!Path::new(&p.path("x")).exists());
    // One that was cut off says so.
    std::fs::remove_file(p.path("run/checkpoints/step-00000012/manifest.json")).unwrap();
    let text = p.refused(&["checkpoint", "inspect", "run/checkpoints/step-00000012"]);
    assert!(text.contains("the save was cut off"), "{text}");
    let text = p.ok(&["checkpoint", "inspect", "run"]);
    assert!(text.contains("step 8:"), "the last complete one counts: {text}");
}
