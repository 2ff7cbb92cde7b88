//! `memwall compare` and `memwall move`: whether a job may take the place of another, and a run that goes on in another layout.

mod common;

use common::{JOB, Place, contents};
use serde_json::Value;

fn place(more: &str) -> Place {
    let p = Place::new();
    p.write("job.toml", &JOB.replace("seed = 3", &format!("seed = 3\n{more}")));
    p
}

fn compare(p: &Place, args: &[&str]) -> (Option<i32>, Value) {
    let out = p.memwall(&[&["compare"], args, &["--json"]].concat());
    let text = String::from_utf8(out.stdout).unwrap();
    let json = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code(), json)
}

#[test]
fn a_layout_that_gives_the_same_bits_is_safe_and_one_that_rounds_otherwise_too() {
    let p = place("deterministic = true");
    p.write(
        "b.toml",
        &format!(
            "{}\n[parallel]\nranks = 3\nzero = 3\n[memory]\nrecompute = \"full\"\n",
            JOB.replace("seed = 3", "seed = 3\ndeterministic = true")
        ),
    );
    let (code, same) = compare(&p, &["job.toml", "b.toml", "--steps", "4"]);
    assert_eq!(code, Some(0), "{same:#}");
    assert_eq!(same["verdict"], "safe: the same to the bit");
    assert_eq!((&same["gradients_apart"], &same["weights_apart"]), (&0.0.into(), &0.0.into()));
    assert_eq!(same["a"]["steps"].as_array().unwrap().len(), 4);
    assert!(same["b"]["wire_bytes_per_step"].as_u64() > Some(0) && same["a"]["wire_bytes_per_step"] == 0);
    assert!(same["b"]["peak_bytes"].as_u64() < same["a"]["peak_bytes"].as_u64());
    let keys: Vec<&str> =
        same["keys"].as_array().unwrap().iter().map(|k| k["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"parallel.zero") && keys.contains(&"memory.recompute"), "{keys:?}");

    let p = place("");
    p.write("b.toml", &format!("{JOB}\n[parallel]\nranks = 3\n"));
    let (code, rounded) = compare(&p, &["job.toml", "b.toml", "--steps", "3"]);
    assert_eq!(
        (code, &rounded["verdict"]),
        (Some(0), &"safe: they differ by rounding alone".into()),
        "{rounded:#}"
    );
    assert!(rounded["gradients_apart"].as_f64() > Some(0.0));
    let out = p.ok(&["compare", "job.toml", "b.toml", "--steps", "3", "--dir", "kept"]);
    for word in ["loss a", "step 3", "gradients", "weights", "memory", "speed", "wire", "verdict    safe"] {
        assert!(out.contains(word), "no {word:?} in {out}");
    }
    assert!(
        out.ends_with(&format!("runs       {}\n", "kept")) && p.path("kept/a/summary.json").exists(),
        "{out}"
    );
    assert_eq!(p.json("kept/report.json")["safe"], true);
}

#[test]
fn a_job_in_half_precision_is_judged_by_its_own_rounding() {
    let p = place("");
    p.write("b.toml", &format!("{JOB}\n[precision]\nmode = \"bf16\"\n"));
    let (code, json) = compare(&p, &["job.toml", "b.toml", "--steps", "3"]);
    assert_eq!(
        (code, &json["verdict"]),
        (Some(0), &"safe: they differ by rounding alone".into()),
        "{json:#}"
    );
    assert!(json["gradients_apart"].as_f64() > Some(1e-4), "{json:#}");
}

#[test]
fn a_job_that_learns_something_else_is_not_safe_and_says_what_makes_it_so() {
    let p = place("");
    p.write("b.toml", &JOB.replace("3e-3", "1e-2"));
    let (code, json) = compare(&p, &["job.toml", "b.toml", "--steps", "2"]);
    let verdict = json["verdict"].as_str().unwrap();
    assert!(code == Some(1) && verdict.contains("optimizer.learning_rate"), "{verdict}");
    let text = p.refused(&["compare", "job.toml", "nothing.toml"]);
    assert!(text.contains("nothing.toml"), "{text}");
    p.write("bad.toml", &JOB.replace("hidden_size = 24", "hidden_size = 25"));
    p.refused(&["compare", "job.toml", "bad.toml"]);
}

#[test]
fn both_begin_with_a_checkpoint_where_one_is_given() {
    let p = place("deterministic = true");
    p.ok(&["train", "job.toml", "--stop-after", "5"]);
    p.write(
        "b.toml",
        &format!(
            "{}\n[parallel]\nranks = 2\n",
            JOB.replace("seed = 3", "seed = 3\ndeterministic = true")
                .replace("micro_batch = 2", "micro_batch = 1")
        ),
    );
    p.write(
        "a.toml",
        &JOB.replace("seed = 3", "seed = 3\ndeterministic = true")
            .replace("micro_batch = 2", "micro_batch = 1"),
    );
    let (code, json) = compare(&p, &["a.toml", "b.toml", "--steps", "3", "--from", "run"]);
    assert_eq!((code, &json["first_step"]), (Some(0), &6.into()), "{json:#}");
    // What the run itself would have done.
    p.ok(&["train", "job.toml", "--resume"]);
    let own = p.metrics("run");
    let first = json["a"]["steps"][0]["loss"].as_f64().unwrap();
    let loss = own[5]["loss"].as_f64().unwrap();
    assert!((first - loss).abs() < 1e-6, "{first} and {loss}");
}

#[test]
fn held_out_losses_are_judged_against_seeds() {
    let p = place("");
    p.write("b.toml", &format!("{JOB}\n[memory]\nrecompute = \"full\"\n"));
    let (code, json) = compare(&p, &["job.toml", "b.toml", "--until-loss", "5.4", "--seeds", "2"]);
    assert_eq!((code, &json["alike"]), (Some(0), &true.into()), "{json:#}");
    assert_eq!(json["a"]["final_losses"], json["b"]["final_losses"], "recomputation changes no bit");
    assert_eq!(json["a"]["final_losses"].as_array().unwrap().len(), 2);
    p.write("b.toml", &JOB.replace("3e-3", "1e-7"));
    let (code, json) = compare(&p, &["job.toml", "b.toml", "--until-loss", "5.4", "--seeds", "2"]);
    let verdict = json["verdict"].as_str().unwrap();
    assert!(code == Some(1) && verdict.contains("b is WORSE"), "{json:#}");
    assert!(json["b"]["reached"].as_array().unwrap().iter().all(Value::is_null), "{json:#}");
    p.write("b.toml", &JOB.replace("evaluate_every = 5", "evaluate_every = 0"));
    let text = p.refused(&["compare", "job.toml", "b.toml", "--until-loss", "5"]);
    assert!(text.contains("train.evaluate_every"), "{text}");
}

/// The run folder, but for what a move adds.
fn run_files(p: &Place) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = contents_of_files(p, "run");
    all.extend(contents(&p.path("run/checkpoints/latest")));
    all
}

fn contents_of_files(p: &Place, folder: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(p.path(folder)).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file());
    let mut files: Vec<_> = files
        .map(|f| (f.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(f).unwrap()))
        .filter(|(name, _)| name != "lock")
        .collect();
    files.sort();
    files
}

#[test]
fn a_run_moves_to_another_layout_and_ends_with_the_same_bits_and_goes_back() {
    let p = place("deterministic = true");
    p.ok(&["train", "job.toml", "--set", "run.dir=whole"]);
    p.ok(&["train", "job.toml", "--stop-after", "6"]);
    let before = run_files(&p);
    p.write(
        "new.toml",
        &format!(
            "{}\n[parallel]\nranks = 3\nzero = 3\n",
            JOB.replace("seed = 3", "seed = 3\ndeterministic = true")
        ),
    );
    let out = p.ok(&["move", "run", "new.toml", "--steps", "2"]);
    for words in
        ["verdict    safe: the same to the bit", "moved      ", "memwall move run --back", "--resume"]
    {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    assert!(p.path("run/moves/0001/report.txt").exists() && !p.path("run/moves/0001/trial").exists());
    // The checkpoint now lies as the new ranks hold it, and is the same.
    assert!(p.ok(&["checkpoint", "inspect", "run"]).contains("in 3 parts"));
    p.ok(&["checkpoint", "verify", "run"]);
    p.ok(&["checkpoint", "diff", "run", "run/moves/0001/checkpoint"]);
    // The old job does not go on by mistake, and the new one ends as if nothing had been.
    p.ok(&["train", "new.toml", "--set", "run.dir=run", "--resume"]);
    let learned = |run: &str| {
        let mut steps = p.metrics(run);
        steps.iter_mut().for_each(|m| drop(m.as_object_mut().unwrap().remove("bytes")));
        steps
    };
    assert_eq!(learned("run"), learned("whole"));
    assert_eq!(contents(&p.path("run/export")), contents(&p.path("whole/export")));

    let out = p.ok(&["move", "run", "--back"]);
    assert!(
        out.contains("is again as it was before the move, at step 6") && out.contains("later checkpoint"),
        "{out}"
    );
    let after = run_files(&p);
    for file in before.iter().filter(|(name, _)| name != "summary.json") {
        assert!(after.contains(file), "{} is not what it was", file.0);
    }
    p.ok(&["train", "job.toml", "--resume"]);
    assert_eq!(learned("run"), learned("whole"));
    let text = p.refused(&["move", "run", "--back"]);
    assert!(text.contains("nothing to undo"), "{text}");
}

#[test]
fn a_move_that_changes_what_is_learned_or_does_not_run_leaves_the_run_as_it_was() {
    let p = place("");
    p.ok(&["train", "job.toml", "--stop-after", "6"]);
    let before = run_files(&p);
    p.write("rate.toml", &JOB.replace("3e-3", "1e-2"));
    let text = p.refused(&["move", "run", "rate.toml"]);
    assert!(text.contains("optimizer.learning_rate was 0.003, now 0.01"), "{text}");
    p.write("small.toml", &format!("{JOB}\n[memory]\nbudget = \"600 KiB\"\n"));
    let text = p.refused(&["move", "run", "small.toml"]);
    assert!(text.contains("budget"), "{text}");
    let text = p.refused(&["move", "text", "rate.toml"]);
    assert!(text.contains("there is no run in text"), "{text}");
    assert_eq!(run_files(&p), before);
    p.ok(&["train", "job.toml", "--resume"]);
}

/// Rates at which training blows up rounding: in half precision it is soon elsewhere.
#[test]
fn a_move_that_deviates_goes_back_by_itself_and_leaves_a_report() {
    let p = Place::new();
    let wild = JOB.replace("3e-3", "30.0").replace("warmup_steps = 2", "warmup_steps = 0");
    p.write("job.toml", &wild);
    p.ok(&["train", "job.toml", "--stop-after", "3"]);
    let before = run_files(&p);
    p.write("new.toml", &format!("{wild}\n[precision]\nmode = \"bf16\"\n"));
    let out = p.memwall(&["move", "run", "new.toml", "--steps", "6"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(
        text.contains("verdict    NOT SAFE: ") && text.contains("nothing of the run was changed"),
        "{text}"
    );
    let report = std::fs::read_to_string(p.path("run/moves/0001/report.txt")).unwrap();
    assert!(report.contains("NOT SAFE") && !p.path("run/moves/0001/trial").exists(), "{report}");
    assert_eq!(run_files(&p), before);
    let text = p.refused(&["move", "run", "--back"]);
    assert!(text.contains("nothing to undo"), "{text}");
    p.ok(&["train", "job.toml", "--resume"]);
}
