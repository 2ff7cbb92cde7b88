//! The whole program on a small job: what it prints, what it leaves, and that it goes on to the bit.

mod common;

use common::{JOB, Place, contents};
use std::f64::consts::PI;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_run_says_what_it_does_and_leaves_a_complete_folder() {
    let p = Place::new();
    let out = p.ok(&["train", "job.toml"]);
    for word in ["parameters", "FLOPs a token", "documents", "held out", "12 steps", "predicted", "measured"]
    {
        assert!(out.contains(word), "no {word:?} in {out}");
    }
    assert!(
        out.contains("step 1/12") && out.contains("step 12/12") && out.contains("held-out loss"),
        "{out}"
    );
    assert!(!out.contains("DIFFERENT"), "{out}");

    let metrics = p.metrics("run");
    assert_eq!(metrics.len(), 12);
    for (i, m) in metrics.iter().enumerate() {
        assert_eq!(m["step"], i as u64 + 1);
        for key in ["loss", "gradient_norm", "tokens"] {
            assert!(m[key].as_f64().is_some_and(|x| x > 0.0), "{key} in {m}");
        }
        // Up over two steps to 3e-3, then down a cosine that would be at zero at step 13.
        let rate = m["learning_rate"].as_f64().unwrap();
        let want =
            if i < 2 { 1.5e-3 * (i + 1) as f64 } else { 1.5e-3 * (1.0 + ((i - 1) as f64 / 11.0 * PI).cos()) };
        assert!((rate - want).abs() < 1e-12, "{rate} for {want}");
        assert!(m["bytes"]["weights"].as_u64().is_some_and(|b| b > 0));
        assert_eq!(m["evaluation_loss"].is_number(), [5, 10, 12].contains(&(i + 1)), "{m}");
    }
    assert!(metrics[11]["loss"].as_f64() < metrics[0]["loss"].as_f64());

    let summary = p.json("run/summary.json");
    assert_eq!(summary["memory"]["equal"], true);
    assert_eq!(summary["memory"]["predicted"], summary["memory"]["measured"]);
    assert!(
        summary["memory"]["peak_resident_bytes"].as_u64()
            > summary["memory"]["measured"]["peak_bytes"].as_u64()
    );
    assert_eq!(summary["final_loss"], metrics[11]["loss"]);
    assert_eq!(summary["evaluation_loss"], metrics[11]["evaluation_loss"]);
    for m in metrics.iter().filter(|m| m["evaluation_loss"].is_number()).chain([&summary]) {
        let (loss, perplexity) =
            (m["evaluation_loss"].as_f64().unwrap(), m["evaluation_perplexity"].as_f64().unwrap());
        assert!((perplexity.ln() - loss).abs() < 1e-12, "{perplexity} for {loss}");
    }
    let perplexity = format!("(perplexity {:.2})", summary["evaluation_perplexity"].as_f64().unwrap());
    assert!(out.matches(&perplexity).count() >= 2, "no {perplexity} in {out}");
    assert!(metrics[0].get("evaluation_perplexity").is_none());
    assert_eq!(summary["stopped_early"], serde_json::Value::Null);
    assert!(summary["median_tokens_per_second"].as_f64().is_some_and(|r| r > 0.0));

    let names = |f: &str| contents(&p.path(f)).into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    let export = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names("run/export"), export);
    let mut saved: Vec<_> =
        std::fs::read_dir(p.path("run/checkpoints")).unwrap().map(|e| e.unwrap().file_name()).collect();
    saved.sort();
    assert_eq!(saved, ["latest", "step-00000008", "step-00000012"]);
}

#[test]
fn the_plan_predicts_what_the_run_measures() {
    let p = Place::new();
    for (i, sets) in [
        &[][..],
        &["memory.recompute=full"],
        &["train.deterministic=true"],
        &["train.micro_batch=1", "data.sequence_length=70"],
        &["model.config.tie_word_embeddings=true", "data.validation=0", "train.evaluate_every=0"],
        &["run.threads=1", "train.clip=0", "train.global_batch=2"],
        &["checkpoint.snapshot=100 KiB"],
        &["checkpoint.snapshot=1 GiB", "precision.mode=bf16"],
    ]
    .into_iter()
    .enumerate()
    {
        let dir = format!("run.dir=run{i}");
        let mut args: Vec<&str> = vec!["--set", &dir];
        args.extend(sets.iter().flat_map(|s| ["--set", s]));
        let plan = p.ok(&[&["plan", "job.toml", "--json"], &args[..]].concat());
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        p.ok(&[&["train", "job.toml"], &args[..]].concat());
        let summary = p.json(&format!("run{i}/summary.json"));
        assert_eq!(plan["predicted"], summary["memory"]["measured"], "{sets:?}");
    }
    let text = p.ok(&["plan", "job.toml"]);
    assert!(text.contains("activations") && text.contains("at the peak"), "{text}");
}

#[test]
fn results_do_not_depend_on_threads_recomputation_or_repetition() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    // Threads have working space of their own; all else is equal.
    let learned = |run: &str| {
        let mut steps = p.metrics(run);
        steps.iter_mut().for_each(|m| drop(m.as_object_mut().unwrap().remove("bytes")));
        steps
    };
    let want = learned("run");
    for (i, set) in
        ["run.threads=2", "run.threads=1", "run.threads=3", "memory.recompute=full"].iter().enumerate()
    {
        let dir = format!("run.dir=again{i}");
        p.ok(&["train", "job.toml", "--set", &dir, "--set", set]);
        assert_eq!(learned(&format!("again{i}")), want, "{set}");
        let (a, b) = (p.path("run/export"), p.path(&format!("again{i}/export")));
        assert_eq!(contents(&a), contents(&b), "{set}");
    }
}

// Killed at any moment and resumed, however often, the run has the same losses to the last bit.
#[test]
fn a_run_that_is_killed_and_resumed_equals_one_that_was_not() {
    let p = Place::new();
    p.write("job.toml", &JOB.replace("steps = 12", "steps = 500").replace("every = 4", "every = 3"));
    p.ok(&["train", "job.toml", "--set", "run.dir=whole"]);
    let want = p.metrics("whole");
    let mut kills = 0;
    for wait in [450, 470, 500, 540, 560, 590, 610, 640, 480, 520, 550, 580] {
        let resume: &[&str] = if p.path("run/job.toml").exists() { &["--resume"] } else { &[] };
        let mut child = p
            .command(&[&["train", "job.toml"], resume].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let _ = child.kill();
        kills += u32::from(!child.wait().unwrap().success());
    }
    assert!(kills > 3, "the runs ended too early to be killed");
    p.ok(&["train", "job.toml", "--resume"]);
    assert_eq!(p.metrics("run"), want);
    assert_eq!(contents(&p.path("run/export")), contents(&p.path("whole/export")));
}

#[test]
fn ctrl_c_saves_and_says_how_to_go_on() {
    let p = Place::new();
    p.write("job.toml", &JOB.replace("steps = 12", "steps = 100000").replace("every = 4", "every = 0"));
    let mut child =
        p.command(&["train", "job.toml"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    p.wait_for_steps(&mut child, "run");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(130), "{text}");
    assert!(text.contains("--resume"), "{text}");
    let step = p.metrics("run").len() as u64;
    p.ok(&["train", "job.toml", "--resume", "--set", &format!("train.steps={}", step + 2)]);
    assert_eq!(p.metrics("run").len() as u64, step + 2);
}

#[test]
fn a_reader_that_goes_away_does_not_end_a_run() {
    let p = Place::new();
    let mut child =
        p.command(&["train", "job.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
    assert_eq!(p.metrics("run").len(), 12);
}

#[test]
fn a_finished_run_resumes_to_nothing() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let before = p.metrics("run");
    let out = p.ok(&["train", "job.toml", "--resume"]);
    assert!(out.contains("0 steps"), "{out}");
    assert_eq!(p.metrics("run"), before);
}

#[test]
fn a_run_that_fails_ends_with_exit_code_1_and_names_the_step_and_tensor() {
    let p = Place::new();
    let out = p.memwall(&[
        "train",
        "job.toml",
        "--set",
        "optimizer.learning_rate=1e30",
        "--set",
        "optimizer.warmup_steps=0",
    ]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("step ") && text.contains("learning_rate") && text.contains("model."), "{text}");
}

#[test]
fn an_exported_model_is_fine_tuned_and_generates() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let tune = JOB.split_once("[data]").unwrap().1.replace("tokenizer = \"bytes\"\n", "");
    p.write("tune.toml", &format!("[model]\npath = \"run/export\"\n[data]{tune}"));
    p.ok(&["train", "tune.toml", "--set", "run.dir=tuned"]);
    let (first, last) = (p.metrics("tuned"), p.metrics("run"));
    assert!(
        first[0]["loss"].as_f64() < last[3]["loss"].as_f64(),
        "fine-tuning starts from the trained weights"
    );

    let write = |seed: &str, t: &str| {
        let args = ["generate", "run/export", "--prompt", "alpha", "--seed", seed, "--temperature", t];
        p.ok(&[&args[..], &["--max-tokens", "40"]].concat())
    };
    assert!(write("1", "0.9").starts_with("alpha"));
    assert_eq!(write("1", "0.9"), write("1", "0.9"));
    assert_ne!(write("1", "0.9"), write("2", "0.9"));
    assert_eq!(write("1", "0"), write("2", "0"));
}
