//! How long a run is: by steps, tokens or epochs, and when it stops before that.

mod common;

use common::{JOB, Place, contents};
use serde_json::Value;
use std::process::Stdio;

/// The job of the other tests, with another length, and a rate that does not depend on it.
fn job(length: &str) -> String {
    JOB.replace("steps = 12", length).replace("[optimizer]", "[optimizer]\nschedule = \"constant\"")
}

#[test]
fn a_length_in_tokens_or_epochs_trains_the_steps_it_comes_to() {
    let p = Place::new();
    p.write("steps.toml", &job("steps = 7"));
    let out = p.ok(&["train", "steps.toml"]);
    let want = p.metrics("run");
    assert_eq!(want.len(), 7);
    // Sequences an epoch, as the run says them.
    let said = out.split_once(" sequences an epoch").unwrap().0.rsplit_once('(').unwrap().1;
    let samples: usize = said.parse().unwrap();
    let epochs = format!("epochs = {:?}", 6.0 * 6.9 / samples as f64);
    // A step is 6 sequences of 33 tokens.
    for (name, length) in [("tokens", "tokens = 1189"), ("epochs", &epochs)] {
        p.write(&format!("{name}.toml"), &job(length));
        let args = ["train", &format!("{name}.toml"), "--set", &format!("run.dir={name}")];
        let out = p.ok(&args);
        assert!(out.contains(&format!("7 steps (train.{length}")), "{out}");
        assert_eq!(p.metrics(name), want, "{length}");
        let written = std::fs::read_to_string(p.path(name).join("job.toml")).unwrap();
        assert!(
            written.contains("\nsteps = 7\n") && written.contains(&format!("from train.{length}.")),
            "{written}"
        );
        // It goes on as the same job, and the written one is the job too.
        assert!(p.ok(&[&args[..], &["--resume"]].concat()).contains("0 steps"));
        let again = format!("{name}/job.toml");
        assert!(p.ok(&["train", &again, "--resume"]).contains("0 steps"));
        assert_eq!(p.json(&format!("{name}/summary.json"))["steps"], 7);
    }
    let text =
        p.refused(&["train", "epochs.toml", "--set", "optimizer.warmup_steps=8", "--set", "run.dir=no"]);
    assert!(text.contains("train.steps = 7") && text.contains("comes from train.epochs"), "{text}");
    assert!(!p.path("no").exists());
}

#[test]
fn a_plan_in_epochs_needs_no_data_and_says_so() {
    let p = Place::new();
    p.write("job.toml", &job("epochs = 2.5").replace("text/*.txt", "nowhere/*.txt"));
    let text = p.ok(&["plan", "job.toml"]);
    assert!(text.contains("2.5 epochs (how many steps that is needs the data)"), "{text}");
    let plan: Value = serde_json::from_str(&p.ok(&["plan", "job.toml", "--json"])).unwrap();
    assert_eq!(plan["steps"], Value::Null);
    p.write("steps.toml", &job("steps = 9"));
    let steps: Value = serde_json::from_str(&p.ok(&["plan", "steps.toml", "--json"])).unwrap();
    assert_eq!((&steps["steps"], &steps["predicted"]), (&9.into(), &plan["predicted"]));
}

/// The evaluations of a run that stops only when it is done.
fn evaluations(metrics: &[Value]) -> Vec<(u64, f64)> {
    metrics.iter().filter_map(|m| Some((m["step"].as_u64()?, m["evaluation_loss"].as_f64()?))).collect()
}

/// Keras' EarlyStopping(patience, min_delta, mode="min"), epoch by epoch.
fn keras(evaluations: &[(u64, f64)], patience: u32, min_delta: f64) -> Option<u64> {
    let (mut best, mut wait) = (f64::INFINITY, 0);
    for &(step, loss) in evaluations {
        wait += 1;
        if loss + min_delta < best {
            (best, wait) = (loss, 0);
        } else if wait >= patience {
            return Some(step);
        }
    }
    None
}

#[test]
fn a_run_stops_early_at_the_same_step_resumed_or_not() {
    let p = Place::new();
    let text = job("steps = 200").replace("every = 4", "every = 3");
    p.write("job.toml", &text);
    p.ok(&["train", "job.toml", "--set", "run.dir=full"]);
    let full = p.metrics("full");
    // A rule that this run's losses meet after some improvements and before the end.
    let (delta, stop) = [0.02, 0.05, 0.1, 0.2]
        .iter()
        .find_map(|delta| Some((*delta, keras(&evaluations(&full), 2, *delta)?)))
        .filter(|(_, stop)| (15..200).contains(stop))
        .expect("no rule stops this run");
    let (patience, delta) = ("train.stop_patience=2", format!("train.stop_min_delta={delta}"));
    let rule = ["--set", patience, "--set", &delta];
    let train = |more: &[&str]| p.ok(&[&["train", "job.toml"], &rule[..], more].concat());

    let out = train(&["--set", "run.dir=whole"]);
    assert!(
        out.contains(&format!("stopped early, after step {stop}: the held-out loss did not improve")),
        "{out}"
    );
    let whole = p.metrics("whole");
    assert_eq!(whole, full[..stop as usize]);
    let summary = p.json("whole/summary.json");
    assert_eq!(
        (&summary["steps"], &summary["stopped_early"]["evaluations_without_improvement"]),
        (&stop.into(), &2.into())
    );
    let best = summary["stopped_early"]["best_step"].as_u64().unwrap();
    assert_eq!(summary["stopped_early"]["best_evaluation_loss"], full[best as usize - 1]["evaluation_loss"]);

    // Cut at any step, also between an evaluation and the next checkpoint, and also after the best one.
    for cut in [4, best, best + 1, stop - 1] {
        let dir = format!("run.dir=cut{cut}");
        train(&["--set", &dir, "--set", &format!("train.steps={cut}"), "--set", "optimizer.warmup_steps=2"]);
        train(&["--set", &dir, "--resume"]);
        let mut got = p.metrics(&format!("cut{cut}"));
        if !cut.is_multiple_of(5) {
            // The evaluation at what was the end then; it counts for nothing.
            let object = got[cut as usize - 1].as_object_mut().unwrap();
            assert!(
                object.remove("evaluation_loss").is_some()
                    && object.remove("evaluation_perplexity").is_some()
            );
        }
        assert_eq!(got, whole, "cut at {cut}");
        assert_eq!(p.json(&format!("cut{cut}/summary.json"))["stopped_early"], summary["stopped_early"]);
    }

    // A run that has stopped goes on to nothing, and says again why; with more patience it goes on.
    let out = train(&["--set", "run.dir=whole", "--resume"]);
    assert!(out.contains("0 steps") && out.contains("stopped early"), "{out}");
    assert_eq!(p.metrics("whole"), whole);
    let args = ["train", "job.toml", "--resume", "--set", "run.dir=whole", "--set", "train.stop_patience=0"];
    p.ok(&args);
    assert_eq!(p.metrics("whole"), full);
    assert_eq!(contents(&p.path("whole/export")), contents(&p.path("full/export")));
}

#[test]
fn a_run_that_is_killed_stops_early_where_one_that_was_not_does() {
    let p = Place::new();
    // Nothing improves by 100, so the 40th evaluation after the first ends the run.
    let rule = "evaluate_every = 5\nstop_patience = 40\nstop_min_delta = 100.0";
    p.write(
        "job.toml",
        &job("steps = 100000").replace("evaluate_every = 5", rule).replace("every = 4", "every = 3"),
    );
    let mut child =
        p.command(&["train", "job.toml"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    p.wait_for_steps(&mut child, "run");
    while p.metrics_written("run") < 40 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was killed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let _ = child.kill();
    assert!(!child.wait().unwrap().success());
    let out = p.ok(&["train", "job.toml", "--resume"]);
    assert!(out.contains("resume ") && out.contains("stopped early, after step 205:"), "{out}");
    assert_eq!(p.metrics("run").len(), 205);
}

#[test]
fn metrics_that_are_gone_do_not_silently_begin_the_count_anew() {
    let p = Place::new();
    p.ok(&["train", "job.toml", "--set", "train.stop_patience=3"]);
    let path = p.path("run/metrics.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let without_line_2 = whole.lines().enumerate().filter(|(i, _)| *i != 1).map(|(_, l)| format!("{l}\n"));
    for (damaged, words) in [(String::new(), "up to 0"), (without_line_2.collect(), "step 2 on line 2")] {
        std::fs::write(&path, damaged).unwrap();
        let resume =
            ["train", "job.toml", "--resume", "--set", "train.stop_patience=3", "--set", "train.steps=14"];
        let text = p.refused(&resume);
        assert!(
            text.contains("metrics.jsonl") && text.contains(words) && text.contains("train.stop_patience=0"),
            "{text}"
        );
    }
    std::fs::write(&path, "").unwrap();
    p.ok(&["train", "job.toml", "--resume", "--set", "train.stop_patience=0", "--set", "train.steps=14"]);
}

// PT #140900: the scheduler lost its base rate. Here the rate is a function of the step alone.
#[test]
fn pt_140900_the_learning_rate_at_a_step_is_the_same_after_a_resume() {
    let p = Place::new();
    for schedule in ["constant", "linear", "cosine", "wsd"] {
        let text = JOB
            .replace("steps = 12", "steps = 9")
            .replace("[optimizer]", &format!("[optimizer]\nschedule = \"{schedule}\""));
        p.write("job.toml", &text);
        let whole = format!("run.dir=whole-{schedule}");
        p.ok(&["train", "job.toml", "--set", &whole]);
        let want = p.metrics(&format!("whole-{schedule}"));
        // Checkpoints are of steps 4 and 8; what comes after the cut is made anew.
        let run = format!("cut-{schedule}");
        let dir = format!("run.dir={run}");
        p.ok(&["train", "job.toml", "--set", &dir]);
        let last = p.path(&run).join("checkpoints/step-00000009/manifest.json");
        std::fs::remove_file(last).unwrap();
        let out = p.ok(&["train", "job.toml", "--set", &dir, "--resume"]);
        assert!(out.contains("from the checkpoint of step 8"), "{out}");
        assert_eq!(p.metrics(&run), want, "{schedule}");
        let rates: Vec<f64> = want.iter().map(|m| m["learning_rate"].as_f64().unwrap()).collect();
        assert!(rates.iter().all(|rate| *rate > 0.0), "{schedule}: {rates:?}");
    }
}

// A longer run changes the rates to come, and says so.
#[test]
fn another_length_on_resume_is_said_where_it_changes_rates() {
    let p = Place::new();
    p.ok(&["train", "job.toml"]);
    let out = p.memwall(&["train", "job.toml", "--resume", "--set", "train.steps=13"]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && text.contains("train.steps was 12, now 13"), "{text}");
}
