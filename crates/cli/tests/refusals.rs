//! Bad input: a clear message, exit code 2, nothing started, nothing half-written.

mod common;

use common::{JOB, Place};

/// Each `--set`, and words that the message must have.
#[test]
fn bad_values_are_refused_before_anything_starts() {
    let p = Place::new();
    for (set, words) in [
        ("train.stepz=3", &["stepz", "train.steps"][..]),
        ("trian.steps=3", &["trian", "train"]),
        ("train.steps=\"many\"", &["train.steps", "whole number"]),
        ("train.global_batch=7", &["6", "8", "global_batch"]),
        ("memory.recompute=\"ful\"", &["recompute", "full"]),
        ("optimizer.schedule=\"cosin\"", &["cosine"]),
        ("optimizer.learning_rate=0", &["learning_rate"]),
        ("data.validation=0.9", &["data.validation"]),
        ("data.train=[\"nothing/*.txt\"]", &["nothing/*.txt", "matches no file"]),
        ("data.tokenizer=\"no.json\"", &["no.json"]),
        ("data.sequence_length=5000", &["max_position_embeddings"]),
        ("model.config.hidden_size=0", &["hidden_size"]),
        ("model.config.vocab_size=100", &["vocab_size", "257"]),
        ("model.config.model_type=\"mixtral\"", &["mixtral", "supported"]),
        ("model.config.hidden_act=\"gelu\"", &["hidden_act"]),
        ("model.path=\"elsewhere\"", &["model.path", "model.config"]),
        ("memory.budget=\"64 KiB\"", &["budget"]),
        ("nonsense", &["nonsense", "section.key=value"]),
    ] {
        let text = p.refused(&["train", "job.toml", "--set", set]).to_lowercase();
        for word in words {
            assert!(text.contains(&word.to_lowercase()), "{set}: no {word:?} in {text}");
        }
        assert!(!p.path("run/job.toml").exists(), "{set} started a run");
    }
}

#[test]
fn a_job_that_does_not_fit_gets_advice_that_fits() {
    let p = Place::new();
    let reserved = |set: &str| {
        let plan = p.ok(&["plan", "job.toml", "--json", "--set", set]);
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        plan["predicted"]["reserved_bytes"].as_u64().unwrap()
    };
    let (small, large) = (reserved("train.micro_batch=1"), reserved("train.micro_batch=2"));
    let budget = &format!("memory.budget={}", (small + large) / 2);
    let text = p.refused(&["train", "job.toml", "--set", budget]);
    for word in ["budget of", "activations", "What fits", "train.micro_batch = 1", "memory.budget"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert_eq!(text, p.refused(&["plan", "job.toml", "--set", budget]));
    // The advice is true.
    p.ok(&["train", "job.toml", "--set", budget, "--set", "train.micro_batch=1"]);
}

#[test]
fn every_piece_of_advice_has_been_dry_run_and_is_true() {
    let p = Place::new();
    let job = ["job.toml", "--set", "train.micro_batch=6", "--set", "train.global_batch=12"];
    let reserved = |sets: &[&str]| {
        let plan = p.ok(&[&["plan", "--json"], &job[..], sets].concat());
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        plan["predicted"]["reserved_bytes"].as_u64().unwrap()
    };
    let whole = reserved(&[]);
    let mut kinds = std::collections::BTreeSet::new();
    for percent in [99, 80, 60, 50, 40] {
        let budget = format!("memory.budget={}", whole * percent / 100);
        let text = p.refused(&[&["plan"], &job[..], &["--set", &budget]].concat());
        let advice = text.split_once("What fits (dry-run):\n").unwrap().1;
        for line in advice.lines() {
            let (what, outcome) = line.trim().rsplit_once(": ").unwrap();
            let shown = outcome.strip_suffix(", fits").unwrap();
            // The last line is of the job as it is, with another budget.
            let sets: Vec<String> = match what.strip_suffix(", and the job as it is") {
                Some(budget) => vec![budget.replace(" = ", "=")],
                None => what.split(", ").map(|set| set.replace(" = ", "=")).chain([budget.clone()]).collect(),
            };
            kinds.extend(sets.iter().map(|set| set.split('=').next().unwrap().to_owned()));
            let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set.as_str()]).collect();
            assert_eq!(memwall_cli::job::show_bytes(reserved(&sets)), shown, "{line}");
        }
    }
    let all = ["memory.budget", "memory.recompute", "precision.mode", "train.micro_batch"];
    assert!(kinds.iter().eq(all.iter()), "{kinds:?}");
}

#[test]
fn a_job_file_that_is_not_there_or_not_toml_is_named() {
    let p = Place::new();
    assert!(p.refused(&["train", "no.toml"]).contains("no.toml"));
    p.write("bad.toml", "[train\nsteps = 1");
    let text = p.refused(&["plan", "bad.toml"]);
    assert!(text.contains("bad.toml:1:7"), "{text}");
}

#[test]
fn a_run_folder_that_holds_a_run_is_not_overwritten() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let before = std::fs::read(p.path("run/metrics.jsonl")).unwrap();
    assert!(p.refused(&["train", "job.toml"]).contains("--resume"));
    let text = p.refused(&["train", "job.toml", "--resume", "--set", "train.seed=4"]);
    assert!(text.contains("train.seed was 3, now 4"), "{text}");
    p.write("text/new.txt", "more text than before");
    assert!(p.refused(&["train", "job.toml", "--resume"]).contains("data has changed"));
    assert_eq!(std::fs::read(p.path("run/metrics.jsonl")).unwrap(), before);
    assert!(p.refused(&["train", "job.toml", "--resume", "--set", "run.dir=none"]).contains("no run"));
}

#[test]
fn two_runs_never_share_a_folder() {
    let p = Place::new();
    p.write("long.toml", &JOB.replace("steps = 12", "steps = 100000"));
    let mut first = p.command(&["train", "long.toml"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    p.wait_for_steps(&mut first, "run");
    let text = p.refused(&["train", "long.toml", "--resume"]);
    let _ = first.kill();
    let _ = first.wait();
    assert!(text.contains("in use"), "{text}");
}

#[test]
fn broken_model_folders_are_refused_by_file_and_tensor() {
    let p = Place::new();
    p.ok(&["train", "job.toml", "--set", "train.steps=2", "--set", "optimizer.warmup_steps=0"]);
    let generate = |folder: &str| p.refused(&["generate", folder, "--prompt", "a"]);
    assert!(generate("nowhere").contains("nowhere"));
    let model = p.path("run/export/model.safetensors");
    let whole = std::fs::read(&model).unwrap();
    std::fs::write(&model, &whole[..whole.len() - 9]).unwrap();
    assert!(generate("run/export").contains("not a whole safetensors file"));
    std::fs::write(&model, [255u8; 40]).unwrap();
    assert!(generate("run/export").contains("header"));
    let at = whole.windows(8).position(|w| w == b"k_proj.w").unwrap();
    let mut renamed = whole.clone();
    renamed[at] = b'j';
    std::fs::write(&model, &renamed).unwrap();
    let text = generate("run/export");
    assert!(text.contains("k_proj.weight is missing") && text.contains("j_proj"), "{text}");
    std::fs::remove_file(&model).unwrap();
    assert!(generate("run/export").contains("model.safetensors"));
}
